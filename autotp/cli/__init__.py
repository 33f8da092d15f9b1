"""The command line: `autotp plan`, `autotp verify`, `autotp demo`, `autotp shard`, `autotp merge`."""

from .group import main

__all__ = ["main"]
