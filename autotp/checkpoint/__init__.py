"""Weights out of a parallel model and back into one."""
