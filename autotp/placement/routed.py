"""Routed values: of their rows those are right on a rank that pick parts of a table which the rank holds.

Which rows these are is data, so the others are there too, with numbers of no use. Operators that compute every row by itself
take such values as they take slices. Anything else reads them with all other rows zero, which makes them partial sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..axes.annotation import annotation
from ..axes.facts import Fact, Pick
from ..axes.term import Axis, Dims, Sum, Term, axes_of, axes_of_dims, resolve
from ..errors import UnsoundPlanError
from .placed import placed_as


@dataclass(frozen=True)
class Routing:
    """Rows along some axes, each with the part of an axis that it picks; `by` and `ends` as in `Pick`."""

    rows: tuple[Axis, ...]
    choice: Axis
    by: torch.fx.Node
    ends: bool


@dataclass(frozen=True)
class Routed:
    """A value whose rows are in one of its dims."""

    routing: Routing
    dim: int


def picked(node: torch.fx.Node, fact: Fact, held: frozenset[Axis]) -> Routed | None:
    """How the result of a node is routed by what it picks itself, if its operands are slices along some axes.

    Raises UnsoundPlanError where parts are taken apart.
    """
    if fact.pick is None or not any(axis in held for axis in axes_of(fact.pick.choice)):
        return None
    choice = resolve(fact.pick.choice)
    if not isinstance(choice, Axis):
        raise UnsoundPlanError(f"{node.name} ({node.target}) picks parts along {choice}, which is cut inside")
    return Routed(_routing(fact.pick, choice), fact.pick.dim)


def _routing(pick: Pick, choice: Axis) -> Routing:
    return Routing(tuple(axes_of(pick.rows)), choice, pick.by, pick.ends)


def not_for_any_number(fact: Fact) -> set[torch.fx.Node]:
    """The operands that must have no useless rows: infinity times a gradient of zero is no number."""
    return {fact.operands[place] for place in fact.nonzero}


def row_by_row(node: torch.fx.Node, fact: Fact, routing: Routing) -> int | None:
    """The dim of a node's result that has the rows, if the node computes each of them by itself, from the same row of its
    operands."""
    rows = set(routing.rows)
    name = placed_as(node).origin or node.name
    pinned = any(pin.node == name for axis in rows for pin in axis.pins)
    if not rows or pinned or annotation(node).opaque is not None or rows & axes_of_dims(fact.contracts):
        return None
    value = node.meta["val"]
    values = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(v, torch.Tensor) and not _may_be_useless(v) for v in values):
        return None
    places = {_place_of(routing.rows, dims) for dims in fact.outputs}
    return places.pop() if len(places) == 1 else None


def _may_be_useless(value: torch.Tensor) -> bool:
    """Returns if numbers of any size do no harm: whole ones may be indices."""
    return value.is_floating_point() or value.is_complex() or value.dtype == torch.bool


def _place_of(rows: tuple[Axis, ...], dims: Dims) -> int | None:
    """The only dim with any of the rows' axes, if it has just these."""
    found = [place for place, term in enumerate(dims) if set(axes_of(term)) & set(rows)]
    return found[0] if len(found) == 1 and _are_rows(dims[found[0]], rows) else None


def _are_rows(term: Term, rows: tuple[Axis, ...]) -> bool:
    term = resolve(term)
    return not isinstance(term, Sum) and ((term,) if isinstance(term, Axis) else term.parts) == rows
