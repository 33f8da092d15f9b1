"""A shortest path through the units of a model, in their order, within a bound of memory.

Each unit is in one of two states. It costs time and saves memory to be in the second one; to change from the first to the second
and back again costs time, too. Every way to choose is a path; of those that go through the same state of the same unit only the
ones count that nothing beats in both time and memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """What it takes a unit more to be in the second state, seconds and bytes, and whether it can be."""

    path: str
    seconds: float
    kept: float
    can: bool


@dataclass(frozen=True)
class _Way:
    """A path up to some unit: seconds and bytes so far, and the units in the second state, the last one first."""

    seconds: float = 0.0
    kept: float = 0.0
    last: Step | None = None
    before: _Way | None = None

    def through(self, step: Step, price: float) -> _Way:
        """The way on through a unit in the second state."""
        return _Way(self.seconds + price + step.seconds, self.kept + step.kept, step, self)

    def taken(self) -> Iterator[str]:
        """The units in the second state."""
        way: _Way | None = self
        while way is not None:
            if way.last is not None:
                yield way.last.path
            way = way.before


def cheapest(steps: Sequence[Step], change: float, most: float) -> frozenset[str] | None:
    """The units in the second state of the fastest way that keeps at most so many bytes more than if all are in the first.
    `change` is what it costs to get there and back again. None if no way keeps so little."""
    first, second = [_Way()], list[_Way]()
    for step in steps:
        back = _best((*first, *second))
        second = (
            _best((*(way.through(step, change) for way in first), *(way.through(step, 0.0) for way in second)))
            if step.can
            else []
        )
        first = back
    fitting = [way for way in (*first, *second) if way.kept <= most]
    best = min(fitting, key=lambda way: (way.seconds, way.kept), default=None)
    return None if best is None else frozenset(best.taken())


def _best(ways: Iterable[_Way]) -> list[_Way]:
    """Those that no other beats in both, in order of time."""
    found: list[_Way] = []
    for way in sorted(ways, key=lambda way: (way.seconds, way.kept)):
        if not found or way.kept < found[-1].kept:
            found.append(way)
    return found
