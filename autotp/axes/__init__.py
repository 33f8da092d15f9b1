"""Terms, unification, operator rules and inference: what every dimension of every value is made of."""
