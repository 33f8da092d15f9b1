"""The command line: `autotp plan`, `autotp diff`, `autotp verify`, `autotp generate`, `autotp demo`."""

from .group import main

__all__ = ["main"]
