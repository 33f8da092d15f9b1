"""The verifier: a placement is legal if every row here holds at every node."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..axes.layout import Cuts
from ..errors import PlacementError, UnsoundPlanError
from .routed import Routed, not_for_any_number, picked, row_by_row
from .state import Flow
from .typed import TypedGraph, cut_in, factors_in


def check_pins(typed: TypedGraph, cuts: Cuts) -> None:
    """No cut axis is pinned. Raises UnsoundPlanError naming the operator that needs it whole."""
    for axis in cuts:
        if axis.pins:
            raise UnsoundPlanError(f"an axis of {axis.size} is cut but must be whole at {axis.pins[0]}")


def _operands_agree(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> str | None:
    """A cut axis is held (or sliced) by every operand that has it, or by none."""
    fact = typed.facts[node]
    for axis in flow.held[node] | cut_in(typed.contracted(node), flow.cuts):
        states = {
            axis in flow.held[operand] or axis in flow.use(node, operand).take
            for operand in fact.operands
            if axis in typed.axes(operand)
        }
        if len(states) > 1:
            return f"reads both slices and whole values along an axis of {axis.size}"
    return None


def _partials_are_linear(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> str | None:
    """A partial sum is read raw only as a group of operands in which the operator is linear."""
    fact = typed.facts[node]
    raw = {
        factor: frozenset(
            i
            for i, operand in enumerate(fact.operands)
            if factor in flow.summands(node, operand) - flow.use(node, operand).reduce | flow.use(node, operand).once
        )
        for operand in fact.operands
        for factor in flow.summands(node, operand)
    }
    for factor, group in raw.items():
        if group and group not in fact.linear:
            return f"reads a partial sum over {factor} in which it is not linear"
    return None


def _contractions_are_partial(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> str | None:
    """Summing over a slice leaves a partial sum."""
    fact = typed.facts[node]
    held = frozenset().union(*(flow.held[operand] for operand in fact.operands))
    missing = factors_in(cut_in(typed.contracted(node), flow.cuts) & held, flow.cuts) - flow.partial[node]
    return f"sums over a slice but its result is not marked partial over {sorted(missing)}" if missing else None


def _rows_stay_apart(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> str | None:
    """Rows of other ranks are read only by what computes each row by itself, or picks by the same routing, and the result
    has useless rows too."""
    fact, own = typed.facts[node], flow.routed.get(node)
    if own is not None and any(user.op == "output" and not flow.use(user, node).routed for user in node.users):
        return "leaves the unit with rows that are of no use"
    raw = {operand for operand in fact.operands if operand in flow.routed and not flow.use(node, operand).routed}
    if any(own is None or flow.routed[operand].routing != own.routing for operand in raw):
        return "reads rows that are of no use on some ranks, and its result is not routed alike"
    if raw & not_for_any_number(fact):
        return "reads rows that are of no use where some numbers make none"
    if own is None or own == _picked(typed, flow, node):
        return None
    same = raw and row_by_row(node, fact, own.routing) == own.dim
    return None if same else "is routed, but does not compute every row by itself"


def _picked_parts_are_routed(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> str | None:
    """What is picked from a table of which ranks hold some parts is routed by it."""
    own = _picked(typed, flow, node)
    return "picks parts that a rank may not have" if own is not None and flow.routed.get(node) != own else None


def _picked(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> Routed | None:
    fact = typed.facts[node]
    return picked(node, fact, frozenset().union(*(flow.held[operand] for operand in fact.operands)))


def _one_reduction(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> str | None:
    """All who read a value reduced read it reduced over the same factors."""
    wanted = {flow.use(user, node).reduce for user in node.users} - {frozenset()}
    return "is reduced in two different ways" if len(wanted) > 1 else None


ROWS: tuple[Callable[[TypedGraph, Flow, torch.fx.Node], str | None], ...] = (
    _operands_agree,
    _partials_are_linear,
    _contractions_are_partial,
    _rows_stay_apart,
    _picked_parts_are_routed,
    _one_reduction,
)


def verify(typed: TypedGraph, flow: Flow) -> None:
    """Check every row at every node. Raises PlacementError naming the first node that breaks one."""
    for node in typed.facts:
        for row in ROWS:
            problem = row(typed, flow, node)
            if problem:
                raise PlacementError(f"{node.name} ({node.target}) {problem}")
