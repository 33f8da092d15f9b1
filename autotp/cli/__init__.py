"""The command line: `autotp plan`, `autotp verify`, `autotp generate`, `autotp demo`."""

from .group import main

__all__ = ["main"]
