"""What a parallel model owes the Python it was made from: small modules, called again and again while something changes."""
