"""Traces on disk: written as data by one process, and read by another one that has the same code and state."""
