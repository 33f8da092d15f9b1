"""What a rank has of a value, and of its gradient, over each mesh factor.

A value is *whole* over a factor (every rank has all of it), a *slice* (along axes that are cut over it), *uneven* (a slice in
some segments, whole in others), *partial* (the ranks' values add up to it) or *routed* (each rank's rows are right that pick what
it holds).

The gradient of a slice is the slice of the gradient, that of a routed value has its rows, and of a partial sum every rank has all
of the gradient. Only the gradient of a whole value may be one of two things: whole, or *varying* (the ranks' parts add up to it).
That of an uneven value always varies in the segments that are whole. So a gradient is known by the factors over which it varies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ...axes.layout import Cuts, Factor, Factors
from ...axes.term import Axis, Dims, Sum, Term, axes_of_dims, resolve
from ...errors import PlacementError
from ..routed import Routed

NONE: frozenset[Factor] = frozenset()
# The factors over which all of something is cut, and those over which some of it is.
_Reach: TypeAlias = tuple[frozenset[Factor], frozenset[Factor]]


class Illegal(Exception):
    """What is wrong at a node, as the end of a sentence that begins with the node."""


@dataclass(frozen=True)
class Contract:
    """What a program is to be.

    Attributes:
        cuts: which axes are cut, and how: parameters are given so.
        source: the input that is given cut over its positions, which are the axis `positions`, over the ranks `everywhere`.
        backward: whether a backward may follow.
    """

    cuts: Cuts
    source: str = ""
    positions: Axis | None = None
    everywhere: Factors = ()
    backward: bool = True


@dataclass(frozen=True)
class Value:
    """What a rank has of a value.

    Attributes:
        name: the value of the placed graph that it is of. outputs: its dims; several for a list.
        axes: those along which it is a slice. partial: the factors over which it is a partial sum. routed: its rows, if they are.
        slices, uneven: the factors over which it is a slice, or one in some segments only.
        wants: whether it may have a gradient. shut: whether only whoever gets the unit's results may read it.
    """

    name: str
    outputs: tuple[Dims, ...]
    axes: frozenset[Axis] = frozenset()
    partial: frozenset[Factor] = NONE
    routed: Routed | None = None
    slices: frozenset[Factor] = NONE
    uneven: frozenset[Factor] = NONE
    rows: frozenset[Factor] = NONE
    wants: bool = False
    shut: bool = False

    @property
    def varies(self) -> frozenset[Factor]:
        """The factors over whose ranks the value differs."""
        return self.slices | self.uneven | self.partial | self.rows


@dataclass(frozen=True)
class Gradient:
    """The factors over which a gradient varies; `done` are the places (dim, position, factor) where it does not any more."""

    varies: frozenset[Factor] = NONE
    done: frozenset[tuple[int, int, Factor]] = frozenset()


class Mesh:
    """The mesh factors of a program, as factors that none of them splits, and which axis is cut over which.

    Raises PlacementError if there are no such factors.
    """

    def __init__(self, contract: Contract, more: Iterable[Factors] = ()) -> None:
        over = [cut.over for cut in contract.cuts.values()] + [contract.everywhere, *more]
        self.bounds = sorted({bound for each in over for f in each for bound in (f.stride, f.stride * f.size)})
        self._known: dict[Factors, frozenset[Factor]] = {}
        self._axes: dict[tuple[Dims, ...], frozenset[Axis]] = {}
        if any(larger % smaller for smaller, larger in itertools.pairwise(self.bounds)):
            raise PlacementError(
                "a program's mesh factors "
                + ", ".join(sorted({str(f) for each in over for f in each}))
                + " do not nest"
            )
        self.contract, self.cuts = contract, contract.cuts
        self.axes: Mapping[Axis, frozenset[Factor]] = {
            axis: self.atoms(cut.over) for axis, cut in contract.cuts.items()
        } | ({contract.positions: self.atoms(contract.everywhere)} if contract.positions is not None else {})

    def atoms(self, over: Factors) -> frozenset[Factor]:
        """The same ranks by factors that no other one splits."""
        if over not in self._known:
            self._known[over] = frozenset(
                Factor(larger // smaller, smaller)
                for factor in over
                for smaller, larger in itertools.pairwise(self.bounds)
                if factor.stride <= smaller and larger <= factor.stride * factor.size
            )
        return self._known[over]

    def axes_in(self, outputs: tuple[Dims, ...]) -> frozenset[Axis]:
        """The cut ones of the axes of a value."""
        if outputs not in self._axes:
            self._axes[outputs] = frozenset(
                axis for dims in outputs for axis in axes_of_dims(dims) if axis in self.axes
            )
        return self._axes[outputs]

    def factors(self, axes: Iterable[Axis]) -> frozenset[Factor]:
        """The factors that some axes are cut over."""
        return NONE.union(*(self.axes[axis] for axis in axes))

    def settled(self, value: Value) -> Value:
        """A value with what follows from its axes and rows. Raises Illegal if the same ranks cut it twice."""
        rows = NONE if value.routed is None else self.axes[value.routed.routing.choice]
        everywhere, somewhere = NONE, NONE
        if value.axes:
            each = [self._together([self._cut_of(term, value.axes) for term in dims]) for dims in value.outputs]
            everywhere, somewhere = _side_by_side(each)
        _once([*somewhere, *value.partial, *rows])
        return replace(value, slices=everywhere, uneven=somewhere - everywhere, rows=rows)

    def _cut_of(self, term: Term, axes: frozenset[Axis]) -> _Reach:
        term = resolve(term)
        if isinstance(term, Axis):
            own = self.axes[term] if term in axes else NONE
            return own, own
        parts = [self._cut_of(part, axes) for part in term.parts]
        return _side_by_side(parts) if isinstance(term, Sum) else self._together(parts)

    @staticmethod
    def _together(parts: list[_Reach]) -> _Reach:
        """What is cut along several terms at once: each element is."""
        _once([factor for _, somewhere in parts for factor in somewhere])
        return NONE.union(*(part[0] for part in parts)), NONE.union(*(part[1] for part in parts))


def _side_by_side(parts: list[_Reach]) -> _Reach:
    """What is cut along one of several terms: each element along its own."""
    return parts[0][0].intersection(*(part[0] for part in parts)), NONE.union(*(part[1] for part in parts))


def _once(used: list[Factor]) -> None:
    if len(used) != len(set(used)):
        raise Illegal("would be cut twice over the same ranks")


def text(factors: Iterable[Factor]) -> str:
    """Some mesh factors, for an error."""
    return ", ".join(map(str, sorted(factors)))
