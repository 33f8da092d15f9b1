"""What a node that placement puts between values does: one record, from which its function is made and by which it is judged.

A record says all of it: what is done to the value, over which mesh factors, along which dims, and what becomes of the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..axes.layout import Cuts, Factors, Layout, Leaf, ProductLayout, SumLayout, layout_of, ordered, parts_of
from ..axes.term import Axis, Dims, Sum, Term, axes_of_dims, resolve
from .typed import factors_in

# A dim of a value, how it is cut, and over which mesh factors.
CutDim: TypeAlias = tuple[int, Layout, Factors]

# What each does, as the kind of collective that it is, and the phase that it is one in.
DOES: Mapping[str, tuple[str, str]] = {
    "reduce": ("all_reduce", "forward"),  # a partial sum -> the sum; backward: identity
    "once": ("once", "forward"),  # whole -> a partial sum, all of it on the first rank; backward: identity
    "enter": ("all_reduce", "backward"),  # identity; backward: the sum
    "enter_part": ("all_reduce", "backward"),  # identity; backward: the sum at some positions of one dim
    "leave": ("leave", "backward"),  # identity; backward: the gradient on the first rank, zero on the others
    "slice": ("slice", "forward"),  # whole -> a slice; backward: zeros around the slice
    "own": ("own", "forward"),  # routed -> a partial sum, other rows zero; backward: the same rows
    "gather": ("all_gather", "forward"),  # a slice -> whole; backward: the slice, of the sum over `summed`
    "logits": ("all_gather", "forward"),  # a slice -> the logits that it is of, whole to whoever reads them
    "defer": ("all_gather", "deferred"),  # a slice -> whole once it is read
    "keep": ("keep", "forward"),  # a slice -> the distributed tensor that it is of
    "opened": ("opened", "forward"),  # a value cut over positions -> this rank's positions
    "shut": ("shut", "forward"),  # this rank's positions -> the value cut over positions
    "take_positions": ("take_positions", "forward"),  # whole -> this rank's positions; backward: all positions gathered
    "gather_positions": (
        "gather_positions",
        "forward",
    ),  # positions -> whole; backward: positions of the sum over `summed`
    "scatter_sum": ("reduce_scatter", "forward"),  # a partial sum -> positions of the sum; backward: all gathered
}
# Those whose result is in the memory of what they read.
VIEWS = frozenset({"enter", "enter_part", "leave"})


# What is sent forward by those that send.
_AHEAD = {
    "reduce": "all_reduce",
    "gather": "all_gather",
    "logits": "all_gather",
    "gather_positions": "all_gather",
    "scatter_sum": "reduce_scatter",
}


@dataclass(frozen=True)
class Sending:
    """One collective of a transition: its kind and phase, and the mesh factors."""

    kind: str
    phase: str
    over: Factors


@dataclass(frozen=True)
class Transition:
    """What one node does.

    Attributes:
        does: a key of `DOES`. over: the mesh factors. of: what is sent: an activation, a parameter, or what a buffer is given.
        dims: of the dims that are cut or gathered, which they are and how. For a `slice` all dims, with the layouts that the
            part taken has in what is there.
        summed: over which of its ranks' gradients a gather sums. again: whether a gather's backward may gather anew.
        where: the positions along the only dim at which `enter_part` sums.
        ends: whether the rows of `own` are told by where groups of them end.
        number: which result of a call for several it hands on; None where it is by itself.
    """

    does: str
    over: Factors
    of: str = "activation"
    dims: tuple[CutDim, ...] = ()
    summed: Factors = ()
    again: bool = False
    where: tuple[int, ...] = ()
    ends: bool = False
    number: int | None = None

    @property
    def kind(self) -> str:
        """The kind of collective."""
        return DOES[self.does][0]

    @property
    def phase(self) -> str:
        """The phase in which it is one."""
        return DOES[self.does][1]

    @property
    def alone(self) -> Transition:
        """The same by itself."""
        return replace(self, number=None)

    def sends(self, *, gradient: bool = True) -> tuple[Sending, ...]:
        """The collectives that it is, forward and backward; `gradient` says whether the value may have one."""
        ahead = [Sending(_AHEAD[self.does], "forward", self.over)] if self.does in _AHEAD else []
        back = []
        if self.does in ("enter", "enter_part"):
            back.append(Sending("all_reduce", "backward", self.over))
        if self.again or (gradient and self.does in ("scatter_sum", "take_positions")):
            back.append(Sending("all_gather", "backward", self.over))
        if gradient and self.summed:
            at_once = parts_of(self.summed) == parts_of(self.over)  # over all its ranks: each gets its slice of the sum
            kind, over = ("reduce_scatter", self.over) if at_once else ("all_reduce", self.summed)
            back.append(Sending(kind, "backward", over))
        return (*ahead, *back)


@dataclass(frozen=True)
class Joined:
    """One call that does the same to several values; its results are handed on by one node each."""

    parts: tuple[Transition, ...]

    @property
    def does(self) -> str:
        """What it does to each."""
        return self.parts[0].does

    @property
    def over(self) -> Factors:
        """The mesh factors of them all."""
        return self.parts[0].over

    @property
    def kind(self) -> str:
        """The kind of collective."""
        return DOES[self.does][0]

    @property
    def phase(self) -> str:
        """The phase in which it is one."""
        return DOES[self.does][1]

    @property
    def of(self) -> str:
        """What is sent."""
        return self.parts[0].of


def slice_layout(term: Term, held: frozenset[Axis], taken: frozenset[Axis], cuts: Cuts) -> Layout:
    """The layout that cuts a dim along the axes `taken` only, where those in `held` have their local size already."""
    term = resolve(term)
    if isinstance(term, Axis):
        cut = cuts.get(term)
        if cut is None or term not in held | taken:
            return Leaf(term.size)
        return Leaf(term.size, cut) if term in taken else Leaf(cut.local)
    parts = tuple(slice_layout(part, held, taken, cuts) for part in term.parts)
    if not parts:
        return Leaf(1)
    return (SumLayout if isinstance(term, Sum) else ProductLayout)(parts)


def cut_dims(dims: Dims, axes: frozenset[Axis], cuts: Cuts) -> list[CutDim]:
    """The dims of a value that are cut along some axes, with their layouts and mesh factors."""
    own = {axis: cuts[axis] for axis in axes}
    factors = [ordered(factors_in(axes_of_dims([term]) & axes, own)) for term in dims]
    return [(i, layout_of(dims[i], own), over) for i, over in enumerate(factors) if over]
