"""What leaves a unit or a model cut, and is whole for code that needs it whole: logits, positions, what may never be read."""
