"""Module -> torch.fx graph: units, tracing with symbolic sizes, opaque Python objects."""
