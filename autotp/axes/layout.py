"""Layouts: frozen terms that say how a dimension is cut, from which local sizes and local indices are read.

A layout is written as text and read back:

    4096                       one axis, whole
    32/8@1                     an axis of 32 cut in 8 parts over the mesh factor (8 ranks, stride 1)
    7>8/2@1                    an axis of 7, padded to 8, cut in 2
    (2/2@4 · 4/4@1 · 64)       a product, major to minor
    [512/8@1 + 512/8@1]        a sum: segments one after the other

A *mesh factor* is a factor of the tensor-parallel size, given by how many ranks it has and the stride between them:
the ranks r with equal r // (size * stride) and equal r % stride form one group.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .term import Axis, Product, Term, resolve


@dataclass(frozen=True, order=True)
class Factor:
    """A mesh factor: `size` ranks that are `stride` apart."""

    size: int
    stride: int

    def coordinate(self, rank: int) -> int:
        """Position of a rank along this factor."""
        return rank // self.stride % self.size

    def __str__(self) -> str:
        return f"{self.size}@{self.stride}"


Factors: TypeAlias = tuple[Factor, ...]


def ordered(factors: frozenset[Factor]) -> Factors:
    """Mesh factors as a tuple, the largest stride first."""
    return tuple(sorted(factors, key=lambda factor: -factor.stride))


def parts_of(factors: Factors) -> int:
    """Number of parts that the factors cut an axis into."""
    return math.prod([factor.size for factor in factors])


def coordinate(factors: Factors, rank: int) -> int:
    """Position of a rank along several factors, the first one major."""
    position = 0
    for factor in factors:
        position = position * factor.size + factor.coordinate(rank)
    return position


def peers(rank: int, factors: Factors) -> list[int]:
    """The ranks that differ from one only along some factors, in order of their positions."""
    base = rank - sum(factor.coordinate(rank) * factor.stride for factor in factors)
    steps = [[i * factor.stride for i in range(factor.size)] for factor in factors]
    return [base + sum(step) for step in itertools.product(*steps)]


@dataclass(frozen=True)
class Cut:
    """How one axis is cut: over which mesh factors, and the size it is padded to (a multiple of the parts)."""

    over: Factors
    padded: int

    @property
    def local(self) -> int:
        """Size of the axis on one rank, padding included."""
        return self.padded // parts_of(self.over)


@dataclass(frozen=True)
class Leaf:
    """An axis of a layout."""

    size: int
    cut: Cut | None = None

    @property
    def local_size(self) -> int:
        return self.cut.local if self.cut else self.size

    @property
    def padded_size(self) -> int:
        return self.cut.padded if self.cut else self.size

    def __str__(self) -> str:
        if self.cut is None:
            return str(self.size)
        padding = f">{self.cut.padded}" if self.cut.padded != self.size else ""
        over = ",".join(map(str, self.cut.over))
        return f"{self.size}{padding}/{over}"


@dataclass(frozen=True)
class ProductLayout:
    parts: tuple[Layout, ...]

    @property
    def size(self) -> int:
        return math.prod(part.size for part in self.parts)

    @property
    def local_size(self) -> int:
        return math.prod(part.local_size for part in self.parts)

    @property
    def padded_size(self) -> int:
        return math.prod(part.padded_size for part in self.parts)

    def __str__(self) -> str:
        return "(" + " · ".join(map(str, self.parts)) + ")" if self.parts else "1"


@dataclass(frozen=True)
class SumLayout:
    parts: tuple[Layout, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def local_size(self) -> int:
        return sum(part.local_size for part in self.parts)

    @property
    def padded_size(self) -> int:
        return sum(part.padded_size for part in self.parts)

    def __str__(self) -> str:
        return "[" + " + ".join(map(str, self.parts)) + "]"


Layout: TypeAlias = Leaf | ProductLayout | SumLayout
Cuts: TypeAlias = Mapping[Axis, Cut]


def layout_of(term: Term, cuts: Cuts) -> Layout:
    """Freeze a term under a choice of cut axes; neighbouring whole parts are joined."""
    return _frozen(resolve(term), cuts)


def _frozen(term: Term, cuts: Cuts) -> Layout:
    """The same of a term in normal form, whose parts are too."""
    if isinstance(term, Axis):
        return Leaf(term.size, cuts.get(term))
    parts: list[Layout] = []
    for part in (_frozen(part, cuts) for part in term.parts):
        if parts and _is_whole_leaf(part) and _is_whole_leaf(parts[-1]):
            before = parts.pop().size
            part = Leaf(before * part.size if isinstance(term, Product) else before + part.size)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Leaf(1)
    return (ProductLayout if isinstance(term, Product) else SumLayout)(tuple(parts))


def _is_whole_leaf(layout: Layout) -> bool:
    # What is frozen from whole parts only is one leaf.
    return isinstance(layout, Leaf) and layout.cut is None


def leaves(layout: Layout) -> Iterator[Leaf]:
    """The axes of a layout, major to minor."""
    if isinstance(layout, Leaf):
        yield layout
    else:
        for part in layout.parts:
            yield from leaves(part)


def is_whole(layout: Layout) -> bool:
    """Returns if no axis of the layout is cut."""
    return all(leaf.cut is None for leaf in leaves(layout))


def is_padded(layout: Layout) -> bool:
    """Returns if some axis of the layout is larger than the dimension it came from."""
    return any(leaf.padded_size != leaf.size for leaf in leaves(layout))


def factors_of(layout: Layout) -> frozenset[Factor]:
    """The mesh factors over which slices of this dimension differ."""
    return frozenset(factor for leaf in leaves(layout) if leaf.cut for factor in leaf.cut.over)


def most_cut(layout: Layout) -> Counter[Factor]:
    """How often the mesh factors cut one element, at most: an element is in every part of a product and in one of a sum."""
    if isinstance(layout, Leaf):
        return Counter(layout.cut.over if layout.cut else ())
    found: Counter[Factor] = Counter()
    for part in map(most_cut, layout.parts):
        found = found | part if isinstance(layout, SumLayout) else found + part
    return found


def is_even(layout: Layout) -> bool:
    """Returns if all data of a dimension are cut over the same mesh factors: no segment is whole beside one that is cut."""
    if isinstance(layout, Leaf):
        return True
    everywhere = isinstance(layout, ProductLayout) or all(factors_of(p) == factors_of(layout) for p in layout.parts)
    return everywhere and all(map(is_even, layout.parts))


def local_factors(layout: Layout) -> list[frozenset[Factor]]:
    """For every local position the mesh factors over which its data differ."""
    if isinstance(layout, Leaf):
        return [frozenset(layout.cut.over) if layout.cut else frozenset()] * layout.local_size
    columns = [local_factors(part) for part in layout.parts]
    if isinstance(layout, SumLayout):
        return [over for column in columns for over in column]
    return [frozenset().union(*overs) for overs in itertools.product(*columns)]


PADDING = -1


def local_indices(layout: Layout, rank: int) -> list[int]:
    """Global index of every local position on a rank, in local order; PADDING where there is none."""
    if isinstance(layout, Leaf):
        if layout.cut is None:
            return list(range(layout.size))
        start = coordinate(layout.cut.over, rank) * layout.cut.local
        return [i if i < layout.size else PADDING for i in range(start, start + layout.cut.local)]
    columns = [local_indices(part, rank) for part in layout.parts]
    if isinstance(layout, SumLayout):
        starts = itertools.accumulate((part.size for part in layout.parts[:-1]), initial=0)
        return [i if i == PADDING else i + start for start, column in zip(starts, columns, strict=True) for i in column]
    indices = [0]
    for part, column in zip(layout.parts, columns, strict=True):
        indices = [PADDING if PADDING in (i, j) else i * part.size + j for i, j in itertools.product(indices, column)]
    return indices
