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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import networkx as nx
import torch

from ..axes.annotation import annotation
from ..axes.layout import Factor
from .backward import Backward, Enter, Leave, Price, Scatter, Values, Version
from .between import steps_between
from .calls import calls, seconds_of
from .minimum_cut import FIRST, LAST, Place, behind
from .part_sums import part_sums
from .sizes import local_share
from .state import Flow
from .typed import TypedGraph, is_parameter

# On which side of the cut the gradient of a value is.
_SAME, _VARY = FIRST, LAST

# How much of a value one rank holds.
Share: TypeAlias = Callable[[torch.fx.Node], float]


def place_backward(typed: TypedGraph, flow: Flow, price: Price) -> Backward:
    """The enters of least cost for every mesh factor in use, and what goes with them."""
    factors = sorted(
        {factor for node in flow.held for factor in flow.varies(node)},
        key=lambda factor: (-sum(factor in flow.varies(node) for node in flow.held), factor),
    )
    edges, price = _edges(typed, flow), functools.cache(price)
    share = functools.cache(lambda node: float(local_share(typed, flow, node)))

    def placed(way: tuple[tuple[Factor, ...], bool], weight: Price) -> Backward:
        return _place_in_order(typed, flow, edges, way[0], weight, share, way[1])

    @functools.cache
    def seconds(backward: Backward) -> float:
        return seconds_of(typed, flow, calls(typed, flow, steps_between(typed, flow, backward), price), price)

    ways = [
        (order, ahead)
        for order in itertools.permutations(factors)
        for ahead in ((False, True) if len(factors) > 1 else (False,))
    ]
    alone = {way: placed(way, price) for way in ways}
    best_way = min(ways, key=lambda way: seconds(alone[way])) if len(set(alone.values())) > 1 else ways[0]
    joined = {placed(best_way, _added(price, of)): None for of in ("parameter", "activation")}
    trials = list({alone[best_way]: None} | joined)
    best = min(trials, key=seconds) if len(trials) > 1 else trials[0]
    return replace(best, part_sums=part_sums(typed, flow.cuts))


def _added(price: Price, of: str) -> Price:
    """Prices as if every sum of activations, or of parameters and of what is gathered, were one more value in a call."""

    @functools.cache
    def added(kind: str, values: Values, ranks: int) -> float:
        own = "parameter" if kind == "reduce_scatter" or is_parameter(values[0][0]) else "activation"
        alone = price(kind, values, ranks)
        return price(kind, (*values, *values), ranks) - alone if own == of else alone

    return added


def _place_in_order(
    typed: TypedGraph,
    flow: Flow,
    edges: list[tuple[Version, Version | None]],
    factors: tuple[Factor, ...],
    price: Price,
    share: Share,
    ahead: bool,
) -> Backward:
    """One mesh factor after the other. `ahead`: the later factors are expected to join."""
    placed: dict[Version, dict[torch.fx.Node, frozenset[Factor]]] = {}
    leaving: dict[torch.fx.Node, frozenset[Factor]] = {}
    summed: dict[torch.fx.Node, frozenset[Factor]] = {}
    for number, factor in enumerate(factors):
        joining = math.prod(later.size for later in factors[number + 1 :]) if ahead else 1
        problem = _Problem(typed, flow, edges, factor, placed, price, share, joining)
        crossing, varying = _cut(problem)
        for version, consumer in crossing:
            consumers = placed.setdefault(version, {})
            consumers[consumer] = consumers.get(consumer, frozenset()) | {factor}
        for source, target in edges:
            if target is None and source in varying and not problem.must_vary(source):
                leaving[source[0]] = leaving.get(source[0], frozenset()) | {factor}
        for node in typed.facts:
            if (node, False) in varying and problem.scatters((node, False)):
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


def _edges(typed: TypedGraph, flow: Flow) -> list[tuple[Version, Version | None]]:
    """Which version of which value each value reads, where gradients flow; None is what leaves the unit."""
    reduces, edges = flow.reduces(), list[tuple[Version, Version | None]]()
    for node in reduces:
        edges.append(((node, False), (node, True)))
    for consumer, fact in typed.facts.items():
        for operand in dict.fromkeys(fact.operands):
            if operand in flow.gradient and consumer in flow.gradient:
                edges.append(((operand, bool(flow.use(consumer, operand).reduce)), (consumer, False)))
    for end in typed.ends():
        for operand in end.all_input_nodes:
            if operand in flow.gradient:
                edges.append(((operand, bool(flow.use(end, operand).reduce)), None))
    return edges


@dataclass(frozen=True)
class _Problem:
    typed: TypedGraph
    flow: Flow
    edges: list[tuple[Version, Version | None]]
    factor: Factor
    placed: Mapping[Version, Mapping[torch.fx.Node, frozenset[Factor]]]
    price: Price
    share: Share
    joining: int = 1

    def must_vary(self, version: Version) -> bool:
        node, reduced = version
        varying = self.flow.varies(node)
        if reduced:
            varying = varying - self.flow.reduces()[node]
        return self.factor in varying

    def must_not_vary(self, version: Version) -> bool:
        node, reduced = version
        if reduced:
            return self.factor in self.flow.reduces()[node]
        given = node.op in ("placeholder", "get_attr") or annotation(node).gradient
        return given and not self.must_vary(version)

    def is_collective(self, source: Version, target: Version) -> bool:
        """Returns if the step itself makes the value whole over the factor (a reduction, a collection), or lets a whole one
        join a partial sum: the gradient of what joins is the sum's, which every rank has."""
        if source[0] is target[0]:
            return self.must_not_vary(target)
        if self.factor in self.flow.use(target[0], source[0]).once:
            return True
        return self.typed.facts[target[0]].collects and self.must_vary(source) and not self.must_vary(target)

    def cost(self, kind: str, node: torch.fx.Node, ranks: int) -> int:
        """The price of a collective on what one rank holds of a value; nothing for a single rank.

        In whole femtoseconds, so that the minimum cut is exact and the same on every rank.
        """
        if ranks == 1:
            return 0
        return round(1e15 * self.price(kind, ((node, self.share(node)),), ranks * self.joining))

    def scatters(self, version: Version) -> bool:
        """Returns if the backward of a collection can sum over the factor: a marker behind a whole value collects nothing."""
        fact = self.typed.facts[version[0]]
        return fact.collects and self.factor in self.flow.varies(fact.operands[0]) and not self.must_vary(version)


def _cut(problem: _Problem) -> tuple[list[tuple[Version, torch.fx.Node]], set[Version]]:
    """Edges on which the gradient starts to vary over the problem's factor, and the values where it does."""
    consumers: dict[Version, list[Version]] = {}
    for source, target in problem.edges:
        if target is not None and not problem.is_collective(
            source, target
        ):  # varying before, invariant or summed after
            consumers.setdefault(source, []).append(target)
    # The gradient of a consumer cannot be whole if the value's is not.
    certain = [(target, source) for source, targets in consumers.items() for target in targets]
    barred = {version: _barred(problem, version, targets) for version, targets in consumers.items()}
    certain += [(version, target) for version, targets in barred.items() for target in targets]
    versions = dict.fromkeys(v for edge in problem.edges for v in edge if v is not None)
    sides = _sides(problem, versions, certain)
    network: list[tuple[Place, Place, int | None]] = [
        (_place(one), _place(other), None) for one, other in certain if one not in sides and other not in sides
    ]
    for version in versions:
        if version not in sides and problem.scatters(version):
            # Where the gradient varies behind a collection, the collection's own backward scatters the sum.
            cost = problem.cost("reduce_scatter", version[0], problem.factor.size)
            network.append((_SAME, _place(version), cost))
    for version, targets in consumers.items():
        if any(each not in sides for each in (version, *targets)):
            network += _costs(problem, version, [each for each in targets if each not in barred[version]], sides)
    beyond = behind(network)
    varying = {v for v in versions if sides.get(v) == _VARY or (v not in sides and _place(v) in beyond)}
    crossing = [
        (source, target[0])
        for source, targets in consumers.items()
        for target in targets
        if source not in varying and target in varying
    ]
    return crossing, varying


def _place(version: Version) -> Place:
    return version[0].name, version[1]


def _sides(
    problem: _Problem, versions: Iterable[Version], certain: Iterable[tuple[Version, Version]]
) -> dict[Version, str]:
    """The sides of the values of which these are known before anything is cut: their own, and what follows from these along edges
    that no cut may cross."""
    after: dict[Version, list[Version]] = {}
    before: dict[Version, list[Version]] = {}
    for one, other in certain:
        after.setdefault(one, []).append(other)
        before.setdefault(other, []).append(one)
    sides = {version: _VARY for version in versions if problem.must_vary(version)}
    sides |= {version: _SAME for version in versions if version not in sides and problem.must_not_vary(version)}
    waiting = list(sides)
    while waiting:
        version = waiting.pop()
        for other in (after if sides[version] == _SAME else before).get(version, ()):
            if other not in sides:
                sides[other] = sides[version]
                waiting.append(other)
            elif sides[other] != sides[version]:
                raise nx.NetworkXUnbounded(f"the gradient of {other[0].name} would have to vary, and not to")
    return sides


def _barred(problem: _Problem, version: Version, targets: list[Version]) -> list[Version]:
    """The consumers whose gradients vary where the value's does. A list is no value, and a step that writes in place or makes a
    view of what is written wants the memory itself: the sum goes before or behind them."""
    node = version[0]
    written = problem.flow.written if node in problem.flow.written else frozenset()
    return targets if isinstance(node.meta["val"], (list, tuple)) else [t for t in targets if t[0] in written]


def _costs(
    problem: _Problem, version: Version, targets: list[Version], sides: Mapping[Version, str]
) -> Iterator[tuple[Place, Place, int | None]]:
    """One call for all consumers; less where it joins an enter that stands there already for the same consumers."""
    node, own = version[0], sides.get(version) or _place(version)
    groups: dict[frozenset[Factor], list[Place]] = {}
    for target in targets:
        over = problem.placed.get(version, {}).get(target[0], frozenset[Factor]())
        groups.setdefault(over, []).append(sides.get(target) or _place(target))
    for over, group in groups.items():
        ranks = math.prod(factor.size for factor in over)
        before = problem.cost("all_reduce", node, ranks)
        more = max(problem.cost("all_reduce", node, ranks * problem.factor.size) - before, 0)
        if len(group) == 1:
            yield own, group[0], more
            continue
        join, every = ("join", own, over), ("all", own, over)
        # All consumers of an enter join it: the same call over more ranks. Only some do: a second call beside the first.
        yield own, join, more
        yield from ((join, target, None) for target in group)
        if before:
            yield every, join, before
            yield from ((target, every, None) for target in group)
