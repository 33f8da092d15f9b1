"""Forward placement: which values are slices, which are partial sums, and where each is made whole again.

A value *holds* a cut axis when this rank has only its slice of it. It is *partial* over a mesh factor when the true
value is the sum over that factor's ranks. Partial sums flow through operators that are linear in them and are reduced
only where something else needs the value; whole values are sliced only where they meet something cut.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..axes.facts import Fact
from ..axes.layout import Cuts, Factor, Layout, Leaf, ProductLayout, SumLayout, is_even, layout_of
from ..axes.term import Axis, axes_of_dims
from ..errors import UnsoundPlanError
from .typed import TypedGraph, cut_in, factors_in, is_parameter, needs_gradient


@dataclass(frozen=True)
class Use:
    """How a node reads an operand: reduced over mesh factors, then sliced along axes, then (backward) summed."""

    reduce: frozenset[Factor] = frozenset()
    take: frozenset[Axis] = frozenset()


PLAIN = Use()


@dataclass
class Flow:
    """The forward state of every value, and how every edge reads it."""

    cuts: Cuts
    held: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    partial: dict[torch.fx.Node, frozenset[Factor]] = field(default_factory=dict)
    zero: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    uses: dict[tuple[torch.fx.Node, torch.fx.Node], Use] = field(default_factory=dict)
    gathers: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    deferred: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    kept: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    gradient: frozenset[torch.fx.Node] = frozenset()
    written: frozenset[torch.fx.Node] = frozenset()

    def use(self, consumer: torch.fx.Node, operand: torch.fx.Node) -> Use:
        return self.uses.get((consumer, operand), PLAIN)

    def varies(self, node: torch.fx.Node) -> frozenset[Factor]:
        """Mesh factors over whose ranks the value differs."""
        return factors_in(self.held[node], self.cuts) | self.partial[node]

    def reduces(self) -> Mapping[torch.fx.Node, frozenset[Factor]]:
        """Every value that is reduced, and over what."""
        found: dict[torch.fx.Node, frozenset[Factor]] = {}
        for (_, operand), use in self.uses.items():
            if use.reduce:
                found[operand] = found.get(operand, frozenset()) | use.reduce
        return found


def flow(typed: TypedGraph, cuts: Cuts, unread: frozenset[int] = frozenset(), *, keep: bool = False) -> Flow:
    """Place every value of a graph under a choice of cuts. With `keep`, results leave as slices that say so.

    Raises UnsoundPlanError, naming node and operator, where padding would be summed as if it were data.
    """
    state = Flow(cuts, gradient=needs_gradient(typed), written=typed.written())
    for node in typed.graph.nodes:
        if node.op == "output":
            _finish(typed, state, node, unread, keep)
        elif node.op in ("placeholder", "get_attr"):
            if node in typed.facts:
                state.held[node] = cut_in(typed.axes(node), cuts) if is_parameter(node) else frozenset()
                state.partial[node], state.zero[node] = frozenset(), state.held[node]
                _check_disjoint(typed, state, node)
        elif node in typed.facts:
            _place(typed, state, node)
        elif "opaque" in node.meta:  # it stores slices, but no parts of a sum
            for operand in [operand for operand in node.all_input_nodes if state.partial.get(operand)]:
                _update(state, node, operand, reduce=state.partial[operand])
    return state


def _place(typed: TypedGraph, state: Flow, node: torch.fx.Node) -> None:
    fact, cuts = typed.facts[node], state.cuts
    operands = fact.operands
    held = frozenset().union(*(state.held[operand] for operand in operands))
    held |= {axis for axis in cut_in(typed.axes(node), cuts) if axis in axes_of_dims(fact.creates)}
    contracted = cut_in(typed.contracted(node), cuts) & held
    for operand in operands:
        take = (cut_in(typed.axes(operand), cuts) & held) - state.held[operand]
        if take:
            _update(state, node, operand, take=take)
    _check_contraction(typed, state, node, contracted)
    carried = _carry(typed, state, node, held)
    state.held[node] = cut_in(typed.axes(node), cuts) & held
    state.partial[node] = carried | factors_in(contracted, cuts)
    _check_disjoint(typed, state, node)
    state.zero[node] = frozenset(axis for axis in state.held[node] if _is_zero(typed, state, node, axis))


def _carry(typed: TypedGraph, state: Flow, node: torch.fx.Node, held: frozenset[Axis]) -> frozenset[Factor]:
    """Factors over which the result is a partial sum because its operands are; the others are reduced first."""
    fact = typed.facts[node]
    arriving: frozenset[Factor] = frozenset().union(*(state.partial[operand] for operand in fact.operands))
    carried = frozenset(factor for factor in arriving if _is_linear(state, fact, factor, held))
    grows = sum(map(_bytes, _values(node))) > max(
        (sum(map(_bytes, _values(o))) for o in fact.operands if state.partial[o]), default=0
    )
    if grows:
        carried = frozenset()
    for operand in fact.operands:
        reduce = state.partial[operand] - carried
        if reduce:
            _update(state, node, operand, reduce=reduce)
    return carried


def _is_linear(state: Flow, fact: Fact, factor: Factor, held: frozenset[Axis]) -> bool:
    group = frozenset(i for i, operand in enumerate(fact.operands) if factor in state.partial[operand])
    if group not in fact.linear or factor in factors_in(held, state.cuts):
        return False
    if any(fact.operands[i] in state.written for i in group):
        return False  # what is written, and every view of it, is in the memory of one reduced value
    # A factor of the product that wants a gradient would have to sum it over the ranks: not worth the delay.
    return not any(i not in group and operand in state.gradient for i, operand in enumerate(fact.operands))


def _check_disjoint(typed: TypedGraph, state: Flow, node: torch.fx.Node) -> None:
    """A mesh factor cuts a value once: with two axes cut over it, the ranks would hold the diagonal blocks only."""
    held = {axis: state.cuts[axis] for axis in state.held[node]}
    for dims in typed.facts[node].outputs:
        layouts = ProductLayout(tuple(layout_of(term, held) for term in dims))
        used = [*_factors(layouts), *state.partial[node]]
        if len(used) != len(set(used)):
            raise UnsoundPlanError(f"{node.name} ({node.target}) would be cut twice over the same ranks")


def _factors(layout: Layout) -> list[Factor]:
    """The mesh factors that cut a dimension, each as often as one element is cut by it."""
    if isinstance(layout, Leaf):
        return list(layout.cut.over) if layout.cut else []
    parts = [_factors(part) for part in layout.parts]
    if isinstance(layout, SumLayout):
        return list(functools.reduce(operator.or_, map(Counter, parts)).elements())
    return [factor for part in parts for factor in part]


def _check_contraction(typed: TypedGraph, state: Flow, node: torch.fx.Node, contracted: frozenset[Axis]) -> None:
    fact = typed.facts[node]
    if not contracted or fact.looks_up:
        return
    if not fact.linear:
        raise UnsoundPlanError(f"{node.name} ({node.target}) sums over a cut axis and adds something else in one step")
    if not all(is_even(layout_of(term, {axis: state.cuts[axis] for axis in contracted})) for term in fact.contracts):
        raise UnsoundPlanError(
            f"{node.name} ({node.target}) sums over segments of which some are cut and some are whole"
        )
    for axis in contracted:
        if state.cuts[axis].padded != axis.size and not _is_zero(typed, state, node, axis):
            raise UnsoundPlanError(
                f"{node.name} sums over an axis of {axis.size} padded to {state.cuts[axis].padded}, and the padding is not"
                " zero there; choose a tensor-parallel size that divides it"
            )


def _is_zero(typed: TypedGraph, state: Flow, node: torch.fx.Node, axis: Axis) -> bool:
    """Returns if the result is zero on the padding of an axis (for a contraction: what it sums there)."""
    fact = typed.facts[node]

    def zero(operand: torch.fx.Node) -> bool:
        return axis in state.zero[operand] or axis in state.use(node, operand).take

    return any(all(zero(fact.operands[i]) for i in group) for group in fact.zeros)


def _finish(typed: TypedGraph, state: Flow, output: torch.fx.Node, unread: frozenset[int], keep: bool) -> None:
    """What leaves a unit is whole: partial sums are reduced, slices gathered, or left as they are where nobody reads or
    where they are to be kept."""
    results = output.args[0]
    assert isinstance(results, (list, tuple))
    read = {node for number, node in enumerate(results) if number not in unread}
    for node in output.all_input_nodes:
        if node not in typed.facts:
            continue
        if state.partial[node]:
            _update(state, output, node, reduce=state.partial[node])
        if state.held[node]:
            gathered = state.kept if keep else state.gathers
            (gathered if node in read else state.deferred)[node] = state.held[node]


def _update(
    state: Flow,
    consumer: torch.fx.Node,
    operand: torch.fx.Node,
    reduce: frozenset[Factor] = frozenset(),
    take: frozenset[Axis] = frozenset(),
) -> None:
    before = state.use(consumer, operand)
    state.uses[consumer, operand] = Use(before.reduce | reduce, before.take | take)


def _values(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta["val"]
    return [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)]


def _bytes(value: torch.Tensor) -> int:
    # A size that only the data tells counts as one: it is the same on both sides of a comparison.
    hints = [size if isinstance(size, int) else int(size.node.hint or 1) for size in value.shape]
    return math.prod(hints) * value.element_size()
