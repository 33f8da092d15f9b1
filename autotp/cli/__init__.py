"""The command line: `autotp plan`, `autotp diff`, `autotp verify`, `autotp demo`."""

from .group import main

__all__ = ["main"]
