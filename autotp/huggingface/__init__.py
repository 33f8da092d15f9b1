"""What is specific to transformers, and nothing else is."""
