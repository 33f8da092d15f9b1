"""The command line: `autotp plan`, `diff`, `verify`, `generate`, `shard`, `merge` and `demo`."""

from .group import main

__all__ = ["main"]
