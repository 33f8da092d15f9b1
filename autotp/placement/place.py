"""Placement of one unit: all of forward and backward, from cuts to a list of collectives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from ..axes.facts import Typing
from ..axes.layout import Cuts, layout_of
from ..errors import UnsoundPlanError
from .backward import Backward, Price
from .between import steps_between
from .calls import Together, calls, seconds_of
from .certificate.values import Contract, Mesh
from .conjugate import place_backward
from .flow import flow
from .norms import write_out_norms, write_out_running_statistics
from .prepare import regroup_sums, split_biases, taken_apart
from .sequence import SequenceCut, place_sequence
from .state import Flow
from .steps import Steps
from .typed import TypedGraph, is_parameter

# Which products wait for their sum, by what units are like in which they do.
Waits: TypeAlias = MutableMapping[Hashable, frozenset[str]]


@dataclass(frozen=True)
class Placement:
    """A graph, the steps between its values and which of them are one call; whether a backward may follow; what of it is cut
    over positions, or why nothing is though it should be."""

    typed: TypedGraph
    flow: Flow
    backward: Backward
    steps: Steps
    calls: tuple[Together, ...]
    gradients: bool = True
    sequence: SequenceCut | None = None
    left_whole: str = ""

    @property
    def contract(self) -> Contract:
        """What a program made from it is to be, whatever stands in it."""
        cut, cuts = self.sequence, self.flow.cuts
        if cut is None:
            return Contract(cuts, backward=self.gradients)
        return Contract(cuts, str(cut.source.target), cut.axis, cut.over, self.gradients)


def place(
    graph: torch.fx.Graph,
    typing: Typing,
    cuts: Cuts,
    price: Price,
    unread: frozenset[int] = frozenset(),
    *,
    keep: bool = False,
    backward: bool = True,
    sequence: int = 0,
    waits: Waits | None = None,
) -> Placement:
    """Place a traced graph under a choice of cuts; the traced graph is not changed.

    Results whose numbers are in `unread` leave the unit as slices, to be gathered if they are read after all; with `keep`
    all others do too, as distributed tensors. What is handed on from unit to unit is cut over its positions on so many ranks
    as `sequence` says. Which products wait in a unit that is like one in `waits` is not tried out again.
    Raises UnsoundPlanError if a cut axis must be whole, PlacementError if the mesh factors do not nest.
    """

    def placed(delayed: frozenset[str]) -> Placement:
        typed = TypedGraph.copy_of(graph, typing)
        _check_pins(cuts)
        split_biases(typed, cuts)
        write_out_norms(typed, cuts)
        write_out_running_statistics(typed, cuts)
        first = flow(typed, cuts, unread, keep=keep, delayed=delayed)
        if regroup_sums(typed, frozenset(node for node, over in first.partial.items() if over)):
            first = flow(typed, cuts, unread, keep=keep, delayed=delayed)
        early = taken_apart(typed, first)
        final = flow(typed, cuts, unread, keep=keep, early=early, delayed=delayed) if early else first
        conjugates = place_backward(typed, final, price) if backward else Backward()
        steps = steps_between(typed, final, conjugates)
        _check_written(final, steps)
        return Placement(typed, final, conjugates, steps, calls(typed, final, steps, price), backward)

    Mesh(Contract(cuts))
    seconds = functools.partial(_seconds, price=price)
    best = _cheapest(placed, seconds, {} if waits is None else waits)
    if not sequence:
        return best
    found = place_sequence(best.typed, best.flow, best.backward, sequence)
    if isinstance(found, str):
        return replace(best, left_whole=found)
    steps = steps_between(best.typed, best.flow, best.backward, found)
    return replace(best, sequence=found, steps=steps, calls=calls(best.typed, best.flow, steps, price))


def _check_pins(cuts: Cuts) -> None:
    """No cut axis is pinned. Raises UnsoundPlanError naming the operator that needs it whole."""
    for axis in cuts:
        if axis.pins:
            raise UnsoundPlanError(f"an axis of {axis.size} is cut but must be whole at {axis.pins[0]}")


def _check_written(flow: Flow, steps: Steps) -> None:
    """A rank's part of what is written is read as it is, since what is sent is of one moment. Raises UnsoundPlanError."""
    for step in steps:
        if step.root in flow.written and flow.held[step.root]:
            raise UnsoundPlanError(
                f"{step.root.name} is in memory that is written by parts, and is read as more than that"
            )


# With more products than this, only all of them or none wait: every trial is a placement of its own.
_MOST_PRODUCTS = 6


def _cheapest(
    placed: Callable[[frozenset[str]], Placement], seconds: Callable[[Placement], float], waits: Waits
) -> Placement:
    """The placement in which none of the products waits for its sum, all or one do, or what changing one of them at a time
    then leads to."""
    best, waiting = placed(frozenset()), frozenset[str]()
    known = frozenset(best.flow.products)
    if not known:
        return best
    cost = seconds(best)
    kind = _likeness(best, cost)
    if kind in waits:
        return placed(waits[kind]) if waits[kind] else best
    trials, tried = [known, *_single(known)], {waiting}
    while trials:
        trial = trials.pop(0)
        if trial in tried:
            continue
        tried.add(trial)
        placement = placed(trial)
        known |= placement.flow.products
        if (found := seconds(placement)) < cost:
            best, cost, waiting = placement, found, trial
            trials = [trial ^ change for change in _single(known)] or [known] * (known != trial)
    waits[kind] = waiting
    return best


def _seconds(found: Placement, price: Price) -> float:
    return seconds_of(found.typed, found.flow, found.calls, price)


def _likeness(found: Placement, cost: float) -> Hashable:
    """What units have in common in which the same products wait: operators, what these read, how their results are cut, handed
    on and differentiated, and what all of it costs. Their constants, and the names of parameters, may differ."""
    typed, flow = found.typed, found.flow
    numbers = {node: number for number, node in enumerate(typed.graph.nodes)}

    def of(node: torch.fx.Node) -> Hashable:
        what = (node.name, node.target) if node.op == "call_function" else (node.op, is_parameter(node))
        held = {axis: flow.cuts[axis] for axis in flow.held.get(node, ())}
        results = typed.facts[node].outputs if node in typed.facts else ()
        layouts = tuple(layout_of(term, held) for dims in results for term in dims)
        handed_on = node in flow.gradient, node in flow.kept, node in flow.deferred
        return what, tuple(numbers[each] for each in node.all_input_nodes), layouts, handed_on

    return cost, found.gradients, tuple(map(of, numbers))


def _single(products: frozenset[str]) -> list[frozenset[str]]:
    few = 1 < len(products) <= _MOST_PRODUCTS
    return [frozenset([name]) for name in sorted(products)] if few else []
