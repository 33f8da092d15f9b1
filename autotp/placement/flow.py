"""Forward placement: which values are slices, which are partial sums, and where each is made whole again.

A value *holds* a cut axis when this rank has only its slice of it. It is *partial* over a mesh factor when the true
value is the sum over that factor's ranks. Partial sums flow through operators that are linear in them and are reduced
only where something else needs the value; whole values are sliced only where they meet something cut. A value is *routed*
when only those rows are right on a rank that pick what it holds: with its other rows zero it is a partial sum.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..axes.annotation import annotation
from ..axes.facts import Fact, parameter_of
from ..axes.layout import Cuts, Factor, is_even, layout_of
from ..axes.term import Axis, axes_of_dims
from ..errors import UnsoundPlanError
from .disjoint import check_disjoint
from .results import check_results
from .routed import Routed, not_for_any_number, picked, row_by_row
from .sizes import size_of
from .state import Edge, Flow, Use
from .typed import TypedGraph, cut_in, factors_in, is_parameter


def flow(
    typed: TypedGraph,
    cuts: Cuts,
    unread: frozenset[int] = frozenset(),
    *,
    keep: bool = False,
    early: frozenset[torch.fx.Node] = frozenset(),
    delayed: frozenset[str] = frozenset(),
) -> Flow:
    """Place every value of a graph under a choice of cuts. With `keep`, results leave as slices that say so; what the nodes
    in `early` read is reduced before them.

    A product of a partial sum with a factor that wants a gradient stays partial if its name is in `delayed`: the factor's
    gradient is then summed over the ranks. So does a result that is larger than the partial sum, which may meet another
    one. The names of all such nodes are the result's `products`.
    Raises UnsoundPlanError, naming node and operator, where padding would be summed as if it were data.
    """
    state = _State(cuts, typed.gradient, typed.written, early, delayed)
    for node in typed.graph.nodes:
        if node.op == "output":
            _finish(typed, state, node, unread, keep)
        elif node.op in ("placeholder", "get_attr"):
            if node in typed.facts:
                state.held[node] = cut_in(typed.axes(node), cuts) if is_parameter(node) else frozenset()
                state.partial[node], state.zero[node] = frozenset(), state.held[node]
                check_disjoint(typed, state.flow, node)
        elif node in typed.facts:
            _place(typed, state, node)
    return replace(state.flow, products=frozenset(state.products))


class _State:
    """What is found of the values so far; `flow` shows it. `zero`: the axes on whose padding a value is zero."""

    def __init__(
        self,
        cuts: Cuts,
        gradient: frozenset[torch.fx.Node],
        written: frozenset[torch.fx.Node],
        early: frozenset[torch.fx.Node],
        delayed: frozenset[str],
    ) -> None:
        self.held, self.gathers, self.deferred, self.kept, self.zero = (
            dict[torch.fx.Node, frozenset[Axis]]() for _ in range(5)
        )
        self.partial, self.routed = dict[torch.fx.Node, frozenset[Factor]](), dict[torch.fx.Node, Routed]()
        self.uses, self.products = dict[Edge, Use](), set[str]()
        self.early, self.delayed = early, delayed
        self.flow = Flow(
            cuts,
            held=self.held,
            partial=self.partial,
            routed=self.routed,
            uses=self.uses,
            gathers=self.gathers,
            deferred=self.deferred,
            kept=self.kept,
            gradient=gradient,
            written=written,
        )

    def is_plain(self, node: torch.fx.Node) -> bool:
        """Returns if all ranks have all of a value."""
        return not (self.held[node] or self.partial[node] or node in self.routed)


def _place(typed: TypedGraph, state: _State, node: torch.fx.Node) -> None:
    fact, cuts = typed.facts[node], state.flow.cuts
    operands = fact.operands
    if not fact.creates and all(state.is_plain(operand) for operand in operands):
        state.held[node], state.partial[node], state.zero[node] = frozenset(), frozenset(), frozenset()
        return
    held = frozenset().union(*(state.held[operand] for operand in operands))
    held |= {axis for axis in cut_in(typed.axes(node), cuts) if axis in axes_of_dims(fact.creates)}
    contracted = cut_in(typed.contracted(node), cuts) & held
    for operand in operands:
        take = (cut_in(typed.axes(operand), cuts) & held) - state.held[operand]
        if take:
            _update(state, node, operand, take=take)
    _check_contraction(typed, state, node, contracted)
    _route(typed, state, node, held)
    carried = _carry(typed, state, node, held)
    state.held[node] = cut_in(typed.axes(node), cuts) & held
    state.partial[node] = carried | factors_in(contracted, cuts)
    check_disjoint(typed, state.flow, node)
    written = _writes_part(state, node)
    state.zero[node] = frozenset(axis for axis in state.held[node] if written or _is_zero(typed, state, node, axis))


def _writes_part(state: _State, node: torch.fx.Node) -> bool:
    """Returns if a rank writes into its part of a parameter, whose padding it makes zero again. Autograd, where it hears of the
    write, has seen how the padding's gradient is kept zero, and allows none."""
    writes = annotation(node).writes
    padded = any(state.flow.cuts[axis].padded != axis.size for axis in state.held[node])
    if padded and writes and not any(annotation(each).data for each in writes):
        raise UnsoundPlanError(f"{node.name} ({node.target}) writes into a parameter that is padded")
    return writes is not None


def _route(typed: TypedGraph, state: _State, node: torch.fx.Node, held: frozenset[Axis]) -> None:
    """Whether the result is routed, by what the node picks or because its operands are; others are partial sums first."""
    fact = typed.facts[node]
    own = picked(node, fact, held)
    if own is not None and state.flow.varies(own.routing.by):
        raise UnsoundPlanError(f"{node.name} ({node.target}) picks by a value that is not the same on all ranks")
    found = own or _handed_on(state, node, fact, held)
    if found is not None:
        state.routed[node] = found
        if node in state.flow.written:
            raise UnsoundPlanError(f"{node.name} ({node.target}) writes into rows of which only some are right")
    for operand in dict.fromkeys(fact.operands):
        before = state.routed.get(operand)
        alike = found is not None and before is not None and before.routing == found.routing
        if before is not None and (not alike or operand in not_for_any_number(fact)):
            _read_rows(state, node, operand)


def _handed_on(state: _State, node: torch.fx.Node, fact: Fact, held: frozenset[Axis]) -> Routed | None:
    """How the result is routed because operands are, all alike, where the node computes each row by itself."""
    routed = [operand for operand in fact.operands if operand in state.routed]
    routings = {state.routed[operand].routing for operand in routed if operand not in not_for_any_number(fact)}
    if len(routings) != 1 or annotation(node).writes is not None:
        return None
    (routing,) = routings
    taken = factors_in(held, state.flow.cuts).union(*(state.partial[operand] for operand in fact.operands))
    dim = row_by_row(node, fact, routing)
    return None if dim is None or taken & set(state.flow.cuts[routing.choice].over) else Routed(routing, dim)


def _read_rows(state: _State, consumer: torch.fx.Node, operand: torch.fx.Node) -> None:
    """Let a consumer read a routed value as a partial sum."""
    if operand.meta["val"].dtype == torch.bool:
        raise UnsoundPlanError(
            f"{consumer.name} ({consumer.target}) needs all rows of {operand.name}, which has no sum"
        )
    _update(state, consumer, operand, routed=state.routed[operand])


def _carry(typed: TypedGraph, state: _State, node: torch.fx.Node, held: frozenset[Axis]) -> frozenset[Factor]:
    """Factors over which the result is a partial sum because its operands are; the others are reduced first."""
    fact = typed.facts[node]
    sums = [state.flow.summands(node, operand) for operand in fact.operands]
    arriving: frozenset[Factor] = frozenset().union(*sums)
    taken = factors_in(held, state.flow.cuts) | state.flow.routed_over(state.routed.get(node))
    groups = {factor: _summands(typed, state, node, factor) for factor in arriving - taken}
    carried = frozenset(factor for factor, group in groups.items() if group and _may_wait(state, node, fact, group))
    for i, operand in enumerate(fact.operands):
        reduce = sums[i] - carried
        once = frozenset(factor for factor in carried - sums[i] if i in groups[factor])
        if reduce or once:
            _update(state, node, operand, reduce=reduce, once=once)
    return carried


def _summands(typed: TypedGraph, state: _State, node: torch.fx.Node, factor: Factor) -> frozenset[int]:
    """The operands that are partial sums over a factor, and a bias that joins them, if a node is linear in all together. What is
    written, and every view of it, is in the memory of one reduced value."""
    fact = typed.facts[node]
    if annotation(node).writes is not None:
        return frozenset()
    partial = frozenset(i for i, operand in enumerate(fact.operands) if factor in state.flow.summands(node, operand))
    joined = partial | {i for i, operand in enumerate(fact.operands) if parameter_of(typed.facts, operand) is not None}
    groups = (partial, joined) if _is_multiplied(typed, node) else (partial,)
    group = next((group for group in groups if group in fact.linear), frozenset[int]())
    return frozenset() if any(fact.operands[i] in state.flow.written for i in group) else group


def _is_multiplied(typed: TypedGraph, node: torch.fx.Node) -> bool:
    """Returns if a product reads a value. Elsewhere a bias is as well added behind the sum."""
    facts = [typed.facts[user] for user in node.users if user in typed.facts]
    return any(len(fact.operands) > 1 and frozenset([fact.operands.index(node)]) in fact.linear for fact in facts)


def _may_wait(state: _State, node: torch.fx.Node, fact: Fact, group: frozenset[int]) -> bool:
    """Returns if the sum may come after a node; where another factor of a product wants a gradient, or the result is larger
    than what is summed, if it is to."""
    if node in state.early:
        return False
    if _grows(state, node, fact) or any(
        i not in group and operand in state.flow.gradient for i, operand in enumerate(fact.operands)
    ):
        state.products.add(node.name)
        return node.name in state.delayed
    return True


def _grows(state: _State, node: torch.fx.Node, fact: Fact) -> bool:
    """Returns if a result is larger than the partial sums, and than all that they could be added to."""
    partial = {i for i, operand in enumerate(fact.operands) if state.flow.summands(node, operand)}
    together = partial.union(*(group for group in fact.linear if partial <= group))
    return size_of(node) > max(size_of(fact.operands[i]) for i in together)


def _check_contraction(typed: TypedGraph, state: _State, node: torch.fx.Node, contracted: frozenset[Axis]) -> None:
    fact = typed.facts[node]
    if not contracted or fact.looks_up:
        return
    if not fact.linear:
        raise UnsoundPlanError(f"{node.name} ({node.target}) sums over a cut axis and adds something else in one step")
    if not all(
        is_even(layout_of(term, {axis: state.flow.cuts[axis] for axis in contracted})) for term in fact.contracts
    ):
        raise UnsoundPlanError(
            f"{node.name} ({node.target}) sums over segments of which some are cut and some are whole"
        )
    for axis in contracted:
        if state.flow.cuts[axis].padded != axis.size and not _is_zero(typed, state, node, axis):
            raise UnsoundPlanError(
                f"{node.name} sums over an axis of {axis.size} padded to {state.flow.cuts[axis].padded}, and the padding is not"
                " zero there; choose a tensor-parallel size that divides it"
            )


def _is_zero(typed: TypedGraph, state: _State, node: torch.fx.Node, axis: Axis) -> bool:
    """Returns if the result is zero on the padding of an axis (for a contraction: what it sums there)."""
    fact = typed.facts[node]

    def zero(operand: torch.fx.Node) -> bool:
        return axis in state.zero[operand] or axis in state.flow.use(node, operand).take

    return any(all(zero(fact.operands[i]) for i in group) for group in fact.zeros)


def _finish(typed: TypedGraph, state: _State, output: torch.fx.Node, unread: frozenset[int], keep: bool) -> None:
    """What leaves a unit is whole: partial sums are reduced, slices gathered, or left as they are where nobody reads or
    where they are to be kept."""
    results = output.args[0]
    assert isinstance(results, (list, tuple))
    read = {node for number, node in enumerate(results) if number not in unread}
    check_results(typed, {node for node, axes in state.held.items() if axes})
    for node in output.all_input_nodes:
        if node not in typed.facts:
            continue
        if node in state.routed:
            _read_rows(state, output, node)
        if summands := state.flow.summands(output, node):
            _update(state, output, node, reduce=summands)
        if state.held[node]:
            gathered = state.kept if keep else state.gathers
            (gathered if node in read else state.deferred)[node] = state.held[node]


def _update(
    state: _State,
    consumer: torch.fx.Node,
    operand: torch.fx.Node,
    reduce: frozenset[Factor] = frozenset(),
    take: frozenset[Axis] = frozenset(),
    once: frozenset[Factor] = frozenset(),
    routed: Routed | None = None,
) -> None:
    before = state.flow.use(consumer, operand)
    state.uses[consumer, operand] = Use(
        before.reduce | reduce, before.take | take, before.once | once, before.routed or routed
    )
