"""Placement of one unit: all of forward and backward, from cuts to a list of collectives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch

from ..axes.facts import Typing
from ..axes.layout import Cuts, layout_of
from ..errors import UnsoundPlanError
from .backward import Backward, Price
from .between import steps_between
from .calls import Together, calls, seconds_of
from .certificate.values import Contract, Mesh
from .conjugate import Conjugates
from .flow import flow
from .norms import write_out_norms, write_out_running_statistics
from .prepare import may_regroup, regroup_sums, split_biases, taken_apart
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

    def prepared() -> TypedGraph:
        typed = TypedGraph.copy_of(graph, typing)
        split_biases(typed, cuts)
        write_out_norms(typed, cuts)
        write_out_running_statistics(typed, cuts)
        return typed

    def forward(delayed: frozenset[str]) -> _Forward:
        typed, first = together, flow(together, cuts, unread, keep=keep, delayed=delayed)
        partial = {node.name for node, over in first.partial.items() if over}
        if may_regroup(typed, partial):
            typed = prepared()
            regroup_sums(typed, partial)
            first = flow(typed, cuts, unread, keep=keep, delayed=delayed)
        early = taken_apart(typed, first)
        final = flow(typed, cuts, unread, keep=keep, early=early, delayed=delayed) if early else first
        found = made(typed, final, Backward())
        return _Forward(found, _seconds(found, price), Conjugates(typed, final, price) if backward else None)

    def whole(found: _Forward) -> Placement:
        conjugates = found.conjugates.cheapest() if found.conjugates else Backward()
        best = made(found.placement.typed, found.placement.flow, conjugates)
        _check_written(best.flow, best.steps)
        return best

    def made(typed: TypedGraph, values: Flow, conjugates: Backward, cut: SequenceCut | None = None) -> Placement:
        steps = steps_between(typed, values, conjugates, cut)
        return Placement(typed, values, conjugates, steps, calls(typed, values, steps, price), backward, cut)

    Mesh(Contract(cuts))
    _check_pins(cuts)
    price = functools.cache(price)
    together = prepared()  # for all placements that add in the same order
    best = _cheapest(forward, whole, functools.partial(_seconds, price=price), {} if waits is None else waits)
    if not sequence:
        return best
    found = place_sequence(best.typed, best.flow, best.backward, sequence)
    if isinstance(found, str):
        return replace(best, left_whole=found)
    return made(best.typed, best.flow, best.backward, found)


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


@dataclass(frozen=True)
class _Forward:
    """A placement without its backward, its seconds, and the ways to place that."""

    placement: Placement
    seconds: float
    conjugates: Conjugates | None

    @cached_property
    def sent(self) -> tuple[int, ...]:
        """What its backward sends at least."""
        return self.conjugates.least() if self.conjugates else ()

    def is_behind(self, other: _Forward, seconds: float) -> bool:
        """Returns if it takes longer forward than another one in all, which has so many seconds. Or no less forward, and sends no
        less backward, and more in one of both: what it could save by sums that share a call is left out of account."""
        if self.seconds < other.seconds:
            return False
        if self.seconds >= seconds:
            return True
        if len(self.sent) != len(other.sent):
            return False
        pairs = list(zip(self.sent, other.sent, strict=True))
        return all(own >= its for own, its in pairs) and (
            self.seconds > other.seconds or any(own > its for own, its in pairs)
        )


def _cheapest(
    forward: Callable[[frozenset[str]], _Forward],
    whole: Callable[[_Forward], Placement],
    seconds: Callable[[Placement], float],
    waits: Waits,
) -> Placement:
    """The placement in which none of the products waits for its sum, all do, all of one operator or one, or what changing one of
    them at a time then leads to. The backward takes most of the time, and is placed where it may be worth it."""
    leading, waiting = forward(frozenset()), frozenset[str]()
    best, known = whole(leading), leading.placement.flow.products
    if not known:
        return best
    cost = seconds(best)
    kind = _likeness(best, cost)
    if kind in waits:
        return whole(forward(waits[kind])) if waits[kind] else best
    trials, tried = [known, *_groups(leading.placement.typed, known), *_single(known)], {waiting}
    further: list[frozenset[str]] = []
    while trials:
        trial = trials.pop(0)
        tried.add(trial)
        other = forward(trial)
        known |= other.placement.flow.products
        if not other.is_behind(leading, cost):
            placement = whole(other)
            if (found := seconds(placement)) < cost:
                best, cost, waiting, leading = placement, found, trial, other
                trials = [trial ^ change for change in _single(known)] or [known]
        trials = [trial for trial in trials if trial not in tried]
        if not (trials or further):  # some may wait only behind others
            further = _groups(leading.placement.typed, known)
            trials = [trial for trial in further if trial not in tried]
    waits[kind] = waiting
    return best


def _groups(typed: TypedGraph, products: frozenset[str]) -> list[frozenset[str]]:
    """The products of each operator: both halves of a rotary embedding, say."""
    operators: dict[object, set[str]] = {}
    for node in typed.graph.nodes:
        if node.name in products:
            operators.setdefault(node.target, set()).add(node.name)
    return list(map(frozenset, operators.values()))


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
