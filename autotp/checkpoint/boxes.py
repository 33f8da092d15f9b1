"""Which boxes of the whole tensor a rank's part consists of, read off the layouts."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..axes.layout import Layout, Leaf, SumLayout, coordinate, is_whole


@dataclass(frozen=True)
class Run:
    """Neighbouring positions of a dimension: where they start on the rank, where in the whole, and how many."""

    local: int
    whole: int
    length: int


@functools.lru_cache(maxsize=4096)
def runs(layout: Layout, rank: int) -> tuple[Run, ...]:
    """The data of one dimension on a rank, padding left out.

    Runs are split alike on all ranks: those of two ranks are equal or have nothing in common, so whatever several ranks
    share is the same run on each.
    """
    if is_whole(layout):
        return (Run(0, 0, layout.size),) if layout.size else ()
    if isinstance(layout, Leaf):
        assert layout.cut is not None
        start = coordinate(layout.cut.over, rank) * layout.cut.local
        length = min(layout.cut.local, layout.size - start)
        return (Run(0, start, length),) if length > 0 else ()
    if isinstance(layout, SumLayout):
        found, local, whole = [], 0, 0
        for part in layout.parts:
            found += [Run(local + run.local, whole + run.whole, run.length) for run in runs(part, rank)]
            local, whole = local + part.local_size, whole + part.size
        return tuple(found)
    result: tuple[Run, ...] = (Run(0, 0, 1),)
    for part in layout.parts:
        result = tuple(_refine(result, part, rank))
    return result


def _refine(major: tuple[Run, ...], minor: Layout, rank: int) -> Iterator[Run]:
    if is_whole(minor):
        yield from (Run(run.local * minor.size, run.whole * minor.size, run.length * minor.size) for run in major)
        return
    inner = runs(minor, rank)
    for run in major:
        for i in range(run.length):
            local, whole = (run.local + i) * minor.local_size, (run.whole + i) * minor.size
            yield from (Run(local + part.local, whole + part.whole, part.length) for part in inner)


def elements(layouts: Sequence[Layout], rank: int) -> int:
    """Number of elements of a tensor that a rank holds, padding left out."""
    return math.prod(sum(run.length for run in runs(layout, rank)) for layout in layouts)


@dataclass(frozen=True)
class Box:
    """A box of a tensor: where it starts on the rank, where in the whole, and its sizes."""

    local: tuple[int, ...]
    whole: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, part: torch.Tensor) -> torch.Tensor:
        """The box as a view of a rank's part."""
        return part[tuple(slice(start, start + size) for start, size in zip(self.local, self.sizes, strict=True))]

    def in_whole(self, whole: torch.Tensor) -> torch.Tensor:
        """The box as a view of the whole tensor."""
        return whole[tuple(slice(start, start + size) for start, size in zip(self.whole, self.sizes, strict=True))]


def boxes(layouts: Sequence[Layout], rank: int) -> list[Box]:
    """The boxes that a rank's part consists of, padding left out."""
    return [
        Box(tuple(r.local for r in box), tuple(r.whole for r in box), tuple(r.length for r in box))
        for box in itertools.product(*(runs(layout, rank) for layout in layouts))
    ]
