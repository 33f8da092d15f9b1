"""Lists and dicts that the caller of a unit shares with it: a program takes apart what it is given, and gives new ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ..errors import TraceError
from .instances import is_instance


class Containers:
    """The lists and dicts among the arguments of a call, as they are when this is made."""

    def __init__(self, tree: Any) -> None:
        found = [each for each in _containers(tree) if isinstance(each, (list, dict))]
        self.given = {id(each): (each, _items(each)) for each in found}

    def check(self, result: Any, kept: Collection[int]) -> None:
        """Raises TraceError if one of them was written since, or if the result has one of them in it, or one of the unit's own,
        `kept` by identity: whoever is given that writes into what the unit reads."""
        for each, before in self.given.values():
            now = _items(each)
            if len(now) != len(before) or any(one is not other for one, other in zip(now, before, strict=True)):
                raise TraceError(f"it writes into a {type(each).__name__} that it is given")
        for each in _containers(result):
            if id(each) in self.given:
                raise TraceError(f"it gives back a {type(each).__name__} that it is given")
            if id(each) in kept:
                raise TraceError(f"it gives a {type(each).__name__} that it keeps")


def _containers(value: Any) -> Iterator[Any]:
    """The lists and dicts in a tree of lists, dicts, tuples and instances of dataclasses, and these themselves."""
    if isinstance(value, (list, dict)):
        yield value
    if is_instance(value):
        yield value
        yield from _containers(vars(value))
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _containers(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _containers(part)


def _items(value: Any) -> list[Any]:
    return [part for item in value.items() for part in item] if isinstance(value, dict) else list(value)
