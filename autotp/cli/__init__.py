"""The command line: `autotp plan`, `autotp verify`, `autotp demo`."""

from .group import main

__all__ = ["main"]
