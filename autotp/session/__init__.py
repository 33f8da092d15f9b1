"""The pipeline, composed once: a model is surveyed, planned, cut, filled and saved. What is public stands on it."""
