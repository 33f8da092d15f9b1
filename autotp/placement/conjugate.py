"""Backward placement: where gradients are summed, at the least cost.

A value's *gradient varies* over a mesh factor when each rank holds only its part of the gradient's sum. It must where the
value itself differs between ranks; it must not at the unit's inputs, outputs, reduced values and parameters. In between
there is a choice, and where the gradient of a value starts to vary (the value does not, its consumer does) an *enter* is
placed: identity forward, all-reduce backward, one per value and set of factors, shared by all consumers.

A value whose gradient varies may still leave the unit, if it is the same on all ranks itself: a *leave* is placed, identity
forward, the gradient on the first rank only backward, so that the sum counts it once.

The choice of least cost is a minimum cut: one side are the values whose gradient does not vary. With several mesh
factors they are solved one after the other, the later ones knowing that a sum at the same place for the same consumers
costs no further call. Each is exact given the ones before it, and so the order matters: all orders are tried, with and
without the first ones expecting that the later ones join every call. A minimum cut does not know that sums may share a call
(see `calls`): each is made with every sum as a call of its own, and as if those of one kind had no latency. The cheapest of
all is taken; a brute-force search in the tests finds nothing cheaper.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch

from ..axes.layout import Factor
from .backward import Backward, Enter, Leave, Price, Scatter, Values, Version
from .between import steps_between
from .calls import calls, seconds_of
from .gradients import Cost, Gradients, edges_of
from .part_sums import part_sums
from .sizes import local_share
from .state import Flow
from .typed import TypedGraph, is_parameter


class Conjugates:
    """The ways to sum the gradients that a forward placement leads to, and the cheapest of them."""

    def __init__(self, typed: TypedGraph, flow: Flow, price: Price) -> None:
        self.typed, self.flow, self.price = typed, flow, price
        self.known: dict[Backward, float] = {}  # seconds
        self.share = functools.cache(lambda node: float(local_share(typed, flow, node)))

    @cached_property
    def varying(self) -> dict[Factor, Gradients]:
        """Where gradients may vary, by mesh factor: first the one over which most values do."""
        counts = Counter(factor for node in self.flow.held for factor in self.flow.varies(node))
        edges = edges_of(self.typed, self.flow)
        order = sorted(counts, key=lambda factor: (-counts[factor], factor))
        return {factor: Gradients(self.typed, self.flow, edges, factor) for factor in order}

    def least(self) -> tuple[int, ...]:
        """What sums over each mesh factor, as if there were no other, send at least: their cost without latency."""
        price, latencies = self.price, dict[tuple[str, int], float]()

        def sent(kind: str, values: Values, ranks: int) -> float:
            if (kind, ranks) not in latencies:
                latencies[kind, ranks] = price(kind, ((values[0][0], 0.0),), ranks)
            return price(kind, values, ranks) - latencies[kind, ranks]

        cost = self._cost_by(sent)
        return tuple(self.varying[factor].least(cost) for factor in sorted(self.varying))

    def cheapest(self) -> Backward:
        """The enters of least cost for every mesh factor in use, and what goes with them."""
        factors, price = list(self.varying), self.price
        ways = [
            (order, ahead)
            for order in itertools.permutations(factors)
            for ahead in ((False, True) if len(factors) > 1 else (False,))
        ]
        cost = self._cost_by(price)
        alone = {way: self._placed(way, cost) for way in ways}
        best_way = min(ways, key=lambda way: self._seconds(alone[way])) if len(set(alone.values())) > 1 else ways[0]
        joined = {self._placed(best_way, self._cost_by(_added(price, of))): None for of in ("parameter", "activation")}
        trials = list({alone[best_way]: None} | joined)
        best = min(trials, key=self._seconds) if len(trials) > 1 else trials[0]
        return replace(best, part_sums=part_sums(self.typed, self.flow.cuts))

    def _cost_by(self, weight: Price) -> Cost:
        share = self.share  # alone: `varying` keeps what is found by a cost, and the cost would keep all of this
        return functools.cache(lambda kind, node, ranks: round(1e15 * weight(kind, ((node, share(node)),), ranks)))

    def _placed(self, way: tuple[tuple[Factor, ...], bool], cost: Cost) -> Backward:
        order, ahead = way
        return _place_in_order([self.varying[factor] for factor in order], cost, ahead)

    def _seconds(self, backward: Backward) -> float:
        if backward not in self.known:
            steps = steps_between(self.typed, self.flow, backward)
            found = calls(self.typed, self.flow, steps, self.price)
            self.known[backward] = seconds_of(self.typed, self.flow, found, self.price)
        return self.known[backward]


def _added(price: Price, of: str) -> Price:
    """Prices as if every sum of activations, or of parameters and of what is gathered, were one more value in a call."""

    @functools.cache
    def added(kind: str, values: Values, ranks: int) -> float:
        own = "parameter" if kind == "reduce_scatter" or is_parameter(values[0][0]) else "activation"
        alone = price(kind, values, ranks)
        return price(kind, (*values, *values), ranks) - alone if own == of else alone

    return added


def _place_in_order(each: Sequence[Gradients], cost: Cost, ahead: bool) -> Backward:
    """One mesh factor after the other. `ahead`: the later factors are expected to join."""
    placed: dict[Version, dict[torch.fx.Node, frozenset[Factor]]] = {}
    leaving: dict[torch.fx.Node, frozenset[Factor]] = {}
    summed: dict[torch.fx.Node, frozenset[Factor]] = {}
    for number, own in enumerate(each):
        factor = own.factor
        joining = math.prod(later.factor.size for later in each[number + 1 :]) if ahead else 1
        crossing, varying = own.cheapest(placed, cost, joining)
        for version, consumer in crossing:
            consumers = placed.setdefault(version, {})
            consumers[consumer] = consumers.get(consumer, frozenset()) | {factor}
        for source, target in own.edges:
            if target is None and source in varying and not own.must_vary(source):
                leaving[source[0]] = leaving.get(source[0], frozenset()) | {factor}
        for node in own.typed.facts:
            if (node, False) in varying and own.scatters((node, False)):
                summed[node] = summed.get(node, frozenset()) | {factor}
    return Backward(
        tuple(_enters(placed)),
        tuple(Leave(node, over) for node, over in leaving.items()),
        tuple(Scatter(node, over) for node, over in summed.items()),
    )


def _enters(placed: Mapping[Version, Mapping[torch.fx.Node, frozenset[Factor]]]) -> Iterable[Enter]:
    for (node, reduced), consumers in placed.items():
        for over in sorted(set(consumers.values()), key=sorted):
            yield Enter(node, reduced, over, tuple(c for c, factors in consumers.items() if factors == over))
