"""Over one mesh factor: the values whose gradients vary, where a sum of a gradient may stand, and the cheapest of these ways.

What is the same however it is priced, and whatever stands there for other factors, is found once.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import networkx as nx
import torch

from ..axes.annotation import annotation
from ..axes.layout import Factor
from .backward import Version
from .minimum_cut import FIRST, LAST, Edge, Place, behind
from .state import Flow
from .typed import TypedGraph

# On which side of the cut the gradient of a value is.
_SAME, _VARY = FIRST, LAST

# The price of a collective of a kind on what one rank holds of a value, over so many ranks: in whole femtoseconds, so that the
# minimum cut is exact and the same on every rank.
Cost: TypeAlias = Callable[[str, torch.fx.Node, int], int]
# Over which factors the gradient of a value is summed already, for which of its consumers.
Summed: TypeAlias = Mapping[Version, Mapping[torch.fx.Node, frozenset[Factor]]]
# Edges on which the gradient starts to vary, and the values where it does.
Crossing: TypeAlias = tuple[list[tuple[Version, torch.fx.Node]], frozenset[Version]]


def edges_of(typed: TypedGraph, flow: Flow) -> list[tuple[Version, Version | None]]:
    """Which version of which value each value reads, where gradients flow; None is what leaves the unit."""
    reduces, edges = flow.reduces(), list[tuple[Version, Version | None]]()
    for node in reduces:
        edges.append(((node, False), (node, True)))
    for consumer, fact in typed.facts.items():
        for operand in dict.fromkeys(fact.operands):
            if operand in flow.gradient and consumer in flow.gradient:
                edges.append(((operand, bool(flow.use(consumer, operand).reduce)), (consumer, False)))
    for end in typed.ends:
        for operand in end.all_input_nodes:
            if operand in flow.gradient:
                edges.append(((operand, bool(flow.use(end, operand).reduce)), None))
    return edges


@dataclass(frozen=True)
class Row:
    """Values of which each is all that the next one is computed from, and what the last of them is read by."""

    versions: tuple[Version, ...]
    end: Version

    @property
    def steps(self) -> Iterable[tuple[Version, Version]]:
        """Each with its consumer."""
        return itertools.pairwise((*self.versions, self.end))


class Gradients:
    """Where gradients may vary over one mesh factor, and what the cheapest way to sum them is."""

    def __init__(
        self, typed: TypedGraph, flow: Flow, edges: list[tuple[Version, Version | None]], factor: Factor
    ) -> None:
        self.typed, self.flow, self.edges, self.factor = typed, flow, edges, factor
        self.reduces = flow.reduces()
        self.found: dict[tuple[Cost, int, frozenset[object]], Crossing] = {}

    def cheapest(self, summed: Summed, cost: Cost, joining: int = 1) -> Crossing:
        """Where the gradient starts to vary at the least cost, next to what is `summed` over other factors; every sum is priced
        as if so many times more ranks joined it as `joining` says."""
        placed = frozenset[object]((version, frozenset(over.items())) for version, over in summed.items())
        key = cost, joining, placed
        if key not in self.found:
            self.found[key] = self._cheapest(summed, cost, joining)
        return self.found[key]

    def least(self, cost: Cost) -> int:
        """What the cheapest way costs, if sums over other factors join none of it."""
        crossing, varying = self.cheapest({}, cost)
        sums = {source for source, _ in crossing}
        scattered = [version for version in self.undecided if version in varying and self.scatters(version)]
        size = self.factor.size
        return sum(cost("all_reduce", node, size) for node, _ in sums) + sum(
            cost("reduce_scatter", node, size) for node, _ in scattered
        )

    def must_vary(self, version: Version) -> bool:
        """Returns if the value itself differs between ranks."""
        node, reduced = version
        varying = self.flow.varies(node)
        return self.factor in (varying - self.reduces[node] if reduced else varying)

    def scatters(self, version: Version) -> bool:
        """Returns if the backward of a collection can sum over the factor: a marker behind a whole value collects nothing."""
        fact = self.typed.facts[version[0]]
        return fact.collects and self.factor in self.flow.varies(fact.operands[0]) and not self.must_vary(version)

    def _must_not_vary(self, version: Version) -> bool:
        node, reduced = version
        if reduced:
            return self.factor in self.reduces[node]
        given = node.op in ("placeholder", "get_attr") or annotation(node).gradient
        return given and not self.must_vary(version)

    def _is_collective(self, source: Version, target: Version) -> bool:
        """Returns if the step itself makes the value whole over the factor (a reduction, a collection), or lets a whole one
        join a partial sum: the gradient of what joins is the sum's, which every rank has."""
        if source[0] is target[0]:
            return self._must_not_vary(target)
        if self.factor in self.flow.use(target[0], source[0]).once:
            return True
        return self.typed.facts[target[0]].collects and self.must_vary(source) and not self.must_vary(target)

    @cached_property
    def consumers(self) -> Mapping[Version, list[Version]]:
        """The values computed from each, but for steps that are collectives: varying before, invariant or summed after."""
        found: dict[Version, list[Version]] = {}
        for source, target in self.edges:
            if target is not None and not self._is_collective(source, target):
                found.setdefault(source, []).append(target)
        return found

    @cached_property
    def barred(self) -> Mapping[Version, list[Version]]:
        """The consumers whose gradients vary where the value's does. A list is no value, and a step that writes in place or makes
        a view of what is written wants the memory itself: the sum goes before or behind them."""
        written = self.flow.written

        def of(version: Version, targets: list[Version]) -> list[Version]:
            if isinstance(version[0].meta["val"], (list, tuple)):
                return targets
            return [target for target in targets if target[0] in written] if version[0] in written else []

        return {version: of(version, targets) for version, targets in self.consumers.items()}

    @cached_property
    def certain(self) -> list[tuple[Version, Version]]:
        """Pairs of which the second one's gradient varies where the first one's does not: no cut may part them the other way."""
        # The gradient of a consumer cannot be whole if the value's is not.
        found = [(target, source) for source, targets in self.consumers.items() for target in targets]
        return found + [(version, target) for version, targets in self.barred.items() for target in targets]

    @cached_property
    def versions(self) -> tuple[Version, ...]:
        """All values that have a gradient."""
        return tuple(dict.fromkeys(version for edge in self.edges for version in edge if version is not None))

    @cached_property
    def sides(self) -> Mapping[Version, str]:
        """The sides of the values of which these are known before anything is cut: their own, and what follows from these along
        edges that no cut may cross."""
        after: dict[Version, list[Version]] = {}
        before: dict[Version, list[Version]] = {}
        for one, other in self.certain:
            after.setdefault(one, []).append(other)
            before.setdefault(other, []).append(one)
        sides = {version: _VARY for version in self.versions if self.must_vary(version)}
        sides |= {v: _SAME for v in self.versions if v not in sides and self._must_not_vary(v)}
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

    @cached_property
    def undecided(self) -> tuple[Version, ...]:
        """The values of which a price decides."""
        return tuple(version for version in self.versions if version not in self.sides)

    @cached_property
    def rows(self) -> list[Row]:
        """The values with one consumer, some undecided: with those in a row behind each that nothing else reads."""
        only = {version: targets[0] for version, targets in self.consumers.items() if len(targets) == 1}
        free = {
            version: target
            for version, target in only.items()
            if not self.barred[version] and not (version in self.sides and target in self.sides)
        }
        read = Counter(target for targets in self.consumers.values() for target in targets)
        between = {
            target
            for target in free.values()
            if target in free and read[target] == 1 and target not in self.sides and not self.scatters(target)
        }
        found = []
        for version in (each for each in free if each not in between):
            row = [version]
            while free[row[-1]] in between:
                row.append(free[row[-1]])
            found.append(Row(tuple(row), free[row[-1]]))
        return found

    @cached_property
    def shared(self) -> list[tuple[Version, Place, list[tuple[torch.fx.Node, Place]]]]:
        """The values with several consumers, some undecided, with the places of those before which a sum may stand."""
        return [
            (version, self._place(version), [(t[0], self._place(t)) for t in targets if t not in self.barred[version]])
            for version, targets in self.consumers.items()
            if len(targets) > 1 and any(each not in self.sides for each in (version, *targets))
        ]

    @cached_property
    def fixed(self) -> list[Edge]:
        """The edges that must not be cut, between values that are undecided; a row is one edge."""
        between = {version for row in self.rows for version in row.versions[1:]}
        pairs = [pair for pair in self.certain if between.isdisjoint(pair)]
        pairs += [(row.end, row.versions[0]) for row in self.rows if len(row.versions) > 1]
        return [(self._place(a), self._place(b), None) for a, b in pairs if a not in self.sides and b not in self.sides]

    def _place(self, version: Version) -> Place:
        return self.sides.get(version) or (version[0].name, version[1])

    def _cheapest(self, summed: Summed, cost: Cost, joining: int) -> Crossing:
        network, kept = list(self.fixed), list[int]()
        for version in self.undecided:
            if self.scatters(version):
                # Where the gradient varies behind a collection, the collection's own backward scatters the sum.
                price = cost("reduce_scatter", version[0], self.factor.size * joining)
                network.append((_SAME, self._place(version), price))
        for version, own, targets in self.shared:
            network += self._costs(version[0], own, targets, summed.get(version, {}), cost, joining)
        for row in self.rows:
            costs = [self._cost(version, target, summed, cost, joining) for version, target in row.steps]
            least = min(costs)
            kept.append(len(costs) - costs[::-1].index(least))  # of several the last: where fewer gradients vary
            network.append((self._place(row.versions[0]), self._place(row.end), least))
        varying = self._varying(behind(network), kept)
        crossing = [
            (source, target[0])
            for source, targets in self.consumers.items()
            if source not in varying
            for target in targets
            if target in varying
        ]
        return crossing, varying

    def _varying(self, beyond: Set[Place], kept: Sequence[int]) -> frozenset[Version]:
        """The values whose gradients vary, where these places are behind the cut, and of a row that is cut so many are not."""
        varying = {version for version, side in self.sides.items() if side == _VARY}
        varying |= {version for version in self.undecided if self._place(version) in beyond}
        for row, number in zip(self.rows, kept, strict=True):
            if row.end in varying:
                varying.update(row.versions if row.versions[0] in varying else row.versions[number:])
        return frozenset(varying)

    def _cost(self, version: Version, target: Version, summed: Summed, cost: Cost, joining: int) -> int:
        """What a sum before the only consumer of a value costs."""
        over = summed.get(version, {}).get(target[0], frozenset[Factor]())
        return self._before_and_more(version[0], over, cost, joining)[1]

    def _before_and_more(
        self, node: torch.fx.Node, over: frozenset[Factor], cost: Cost, joining: int
    ) -> tuple[int, int]:
        """What a sum over some factors costs, and how much more it does if this factor joins it."""
        if not over:
            return 0, max(cost("all_reduce", node, self.factor.size * joining), 0)
        ranks = math.prod(factor.size for factor in over)
        before = cost("all_reduce", node, ranks * joining) if ranks > 1 else 0
        return before, max(cost("all_reduce", node, ranks * self.factor.size * joining) - before, 0)

    def _costs(
        self,
        node: torch.fx.Node,
        own: Place,
        targets: list[tuple[torch.fx.Node, Place]],
        summed: Mapping[torch.fx.Node, frozenset[Factor]],
        cost: Cost,
        joining: int,
    ) -> Iterator[Edge]:
        """One call for all consumers; less where it joins an enter that stands there already for the same consumers."""
        groups: dict[frozenset[Factor], list[Place]] = {}
        for target, place in targets:
            groups.setdefault(summed.get(target, frozenset()), []).append(place)
        for over, group in groups.items():
            before, more = self._before_and_more(node, over, cost, joining)
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
