"""Mesh factors: the tensor-parallel size as a product, spread over the axes of a chain, with padding where needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..axes.layout import Cut, Factor, Factors
from ..axes.term import Axis


@dataclass(frozen=True)
class Spread:
    """How the ranks are spread over a chain's axes: a number of parts for each, major first in rank order."""

    axes: tuple[Axis, ...]
    parts: tuple[int, ...]

    def cuts(self) -> dict[Axis, Cut]:
        """The cut of every axis that has more than one part."""
        cuts, stride = {}, math.prod(self.parts)
        for axis, parts in zip(self.axes, self.parts, strict=True):
            stride //= parts
            if parts > 1:
                cuts[axis] = Cut((Factor(parts, stride),), parts * -(-axis.size // parts))
        return cuts


def spreads(axes: Sequence[Axis], ranks: int) -> Iterator[Spread]:
    """Every way to write the number of ranks as a product over the axes, in either order of the ranks."""
    for parts in _factorisations(ranks, len(axes)):
        for order in itertools.permutations(range(len(axes))):
            if any(parts[a] == 1 and parts[b] == 1 and a > b for a, b in itertools.pairwise(order)):
                continue
            yield Spread(tuple(axes[i] for i in order), tuple(parts[i] for i in order))


def _factorisations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (number,)
        return
    for first in sorted((d for d in range(1, number + 1) if number % d == 0), reverse=True):
        for rest in _factorisations(number // first, count - 1):
            yield (first, *rest)


def refine(choices: Iterable[Mapping[Axis, Cut]], ranks: int) -> dict[Axis, Cut] | None:
    """Write the cuts of several chains over one common set of mesh factors; None if the factors do not nest."""
    merged = {axis: cut for cuts in choices for axis, cut in cuts.items()}
    strides = sorted({f.stride for cut in merged.values() for f in cut.over} | {1})
    ends = sorted({f.stride * f.size for cut in merged.values() for f in cut.over} | {ranks})
    bounds = sorted({*strides, *ends})
    if any(larger % smaller for smaller, larger in itertools.pairwise(bounds)):
        return None
    return {axis: Cut(_split(cut.over, bounds), cut.padded) for axis, cut in merged.items()}


def _split(over: Factors, bounds: Sequence[int]) -> Factors:
    """The same ranks in the same order, every factor split at the bounds inside it."""
    result: list[Factor] = []
    for factor in over:
        inside = [b for b in bounds if factor.stride <= b <= factor.stride * factor.size]
        pieces = [Factor(larger // smaller, smaller) for smaller, larger in itertools.pairwise(inside)]
        result.extend(reversed(pieces))
    return tuple(result)
