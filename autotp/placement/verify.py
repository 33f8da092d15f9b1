"""The verifier: a placement is legal if every row here holds at every node."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..axes.layout import Cuts
from ..errors import PlacementError, UnsoundPlanError
from .flow import Flow
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
            if factor in flow.partial[operand] - flow.use(node, operand).reduce | flow.use(node, operand).once
        )
        for operand in fact.operands
        for factor in flow.partial[operand]
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


def _one_reduction(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> str | None:
    """All who read a value reduced read it reduced over the same factors."""
    wanted = {flow.use(user, node).reduce for user in node.users} - {frozenset()}
    return "is reduced in two different ways" if len(wanted) > 1 else None


ROWS: tuple[Callable[[TypedGraph, Flow, torch.fx.Node], str | None], ...] = (
    _operands_agree,
    _partials_are_linear,
    _contractions_are_partial,
    _one_reduction,
)


def verify(typed: TypedGraph, flow: Flow) -> None:
    """Check every row at every node. Raises PlacementError naming the first node that breaks one."""
    for node in typed.facts:
        for row in ROWS:
            problem = row(typed, flow, node)
            if problem:
                raise PlacementError(f"{node.name} ({node.target}) {problem}")
