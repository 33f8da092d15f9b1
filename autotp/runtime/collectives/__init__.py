"""Collectives that autograd knows, each with its conjugate as backward, and the slices that they put together."""
