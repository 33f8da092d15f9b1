"""Brute force that the planner must equal, written from the statements of its two problems and not from its code.

The cuts: every chain is whole or spread over the ranks, in every factorisation and every order of the ranks. Everything
is tried; the best has the fewest parameter elements on a rank, and of those the least time.

The backward: every value gets the set of mesh factors over which its gradient varies. A value's gradient can only vary
where the gradients of all who read it do, except that a reduction or a collection makes whole what varied before it, and
that a whole value which joins a partial sum has the gradient of that sum, which every rank has. It
must vary where the value itself does, and must not at inputs, parameters and reduced values. Where a reader's gradient
varies over more factors than the value's, the value's is summed: one call for all readers with the same further factors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from autotp.axes.layout import Cut, Factor
from autotp.axes.term import Axis, Product, Term, resolve
from autotp.errors import UnsoundPlanError
from autotp.placement.place import Placement, place
from autotp.planner.balance import waiting
from autotp.planner.choose import UnitProblem
from autotp.planner.weigh import Weigher

# -- cuts ----------------------------------------------------------------------------------------------------------

# The parts of every cut axis, and how many ranks lie between two neighbouring parts.
Spread: TypeAlias = Mapping[Axis, tuple[int, int]]


def best_cuts(problem: UnitProblem, ranks: int, weigher: Weigher) -> tuple[int, float]:
    """Parameter elements on a rank, and seconds of all collectives and of waiting for the busiest rank, of the best combination
    that can be placed."""
    by_elements: dict[int, list[dict[Axis, Cut]]] = {}
    for cuts in all_cuts(problem, ranks):
        by_elements.setdefault(_elements(problem, cuts), []).append(cuts)
    for elements, candidates in sorted(by_elements.items()):  # what has more elements cannot be better
        found = []
        for cuts in candidates:
            try:
                placement = place(problem.graph, problem.typing, cuts, weigher.price, problem.unread)
            except UnsoundPlanError:
                continue
            found.append(weigher.seconds(placement) + waiting(placement, weigher))
        if found:
            return elements, min(found)
    raise AssertionError("nothing can be placed, not even the uncut unit")


def all_cuts(problem: UnitProblem, ranks: int) -> Iterator[dict[Axis, Cut]]:
    """Every combination whose mesh factors nest."""
    for combination in itertools.product(*([{}, *_all_spreads(p.axes, ranks)] for p in problem.proposals)):
        cuts = _common_factors(combination)
        if cuts is not None:
            yield cuts


def _all_spreads(axes: tuple[Axis, ...], ranks: int) -> list[Spread]:
    """Every way to give each axis a number of parts, whose product is the number of ranks, in every order of the ranks."""
    spreads: list[Spread] = []
    for order in itertools.permutations(axes):
        for parts in itertools.product(range(1, ranks + 1), repeat=len(axes)):
            if math.prod(parts) == ranks:
                strides = [math.prod(parts[i + 1 :]) for i in range(len(parts))]
                spread = {a: (n, stride) for a, n, stride in zip(order, parts, strides, strict=True) if n > 1}
                if spread not in spreads:
                    spreads.append(spread)
    return spreads


def _common_factors(combination: Iterable[Spread]) -> dict[Axis, Cut] | None:
    """The cuts, every run of ranks split where another one begins or ends; None if the runs do not nest."""
    merged = {axis: run for spread in combination for axis, run in spread.items()}
    ends = sorted({end for parts, stride in merged.values() for end in (stride, stride * parts)})
    if any(far % near for near, far in itertools.pairwise(ends)):
        return None
    cuts = {}
    for axis, (parts, stride) in merged.items():
        inside = [end for end in ends if stride <= end <= stride * parts]
        factors = [Factor(far // near, near) for near, far in itertools.pairwise(inside)]
        cuts[axis] = Cut(tuple(reversed(factors)), math.ceil(axis.size / parts) * parts)
    return cuts


def _elements(problem: UnitProblem, cuts: Mapping[Axis, Cut]) -> int:
    def local(term: Term) -> int:
        term = resolve(term)
        if isinstance(term, Axis):
            return cuts[term].padded // math.prod(f.size for f in cuts[term].over) if term in cuts else term.size
        return (math.prod if isinstance(term, Product) else sum)(local(part) for part in term.parts)

    parameters = {node.target: node for node in problem.graph.nodes if node.meta.get("parameter")}
    return sum(math.prod(map(local, problem.typing.dims(node))) for node in parameters.values())


# -- backward ------------------------------------------------------------------------------------------------------

Factors: TypeAlias = frozenset[Factor]
# A value before or after its reduction.
Version: TypeAlias = tuple[torch.fx.Node, bool]
Seconds: TypeAlias = Callable[[str, torch.fx.Node, int], float]

NOWHERE: Factors = frozenset()


def local_seconds(placement: Placement, weigher: Weigher) -> Seconds:
    """The time of a collective on what one rank holds of a value."""
    held, facts = placement.flow.held, placement.typed.facts

    def share(term: Term, node: torch.fx.Node) -> float:
        term = resolve(term)
        if isinstance(term, Axis):
            cut = placement.flow.cuts[term] if term in held[node] else None
            return cut.padded / math.prod(f.size for f in cut.over) / term.size if cut else 1.0
        if isinstance(term, Product):
            return math.prod(share(part, node) for part in term.parts)
        return sum(share(part, node) * part.size for part in term.parts) / term.size

    def seconds(kind: str, node: torch.fx.Node, ranks: int) -> float:
        return weigher.price(kind, node, ranks, math.prod(share(term, node) for term in facts[node].dims))

    return seconds


def chosen_sums(placement: Placement, seconds: Seconds) -> float:
    """What the sums of a placement cost."""
    total = sum(seconds("all_reduce", enter.node, _ranks(enter.over)) for enter in placement.backward.enters)
    for scatter in placement.backward.scatters:
        total += _scatter_seconds(seconds, scatter.node, scatter.over, _gathered(placement, scatter.node))
    return total


def least_sums(placement: Placement, seconds: Seconds, bound: float = math.inf) -> float:
    """What the cheapest of all labellings costs; infinite if none costs at most the bound."""
    return _Labelling(placement, seconds).frontiers(bound)


def least_sums_of_all(placement: Placement, seconds: Seconds) -> float:
    """The same by writing down every labelling, for graphs of few values."""
    return _Labelling(placement, seconds).everything()


def factors_in_use(placement: Placement) -> list[Factor]:
    """The mesh factors over which some value varies."""
    return sorted({factor for node in placement.flow.held for factor in placement.flow.varies(node)})


def _ranks(over: Factors) -> int:
    return math.prod(factor.size for factor in over)


def _gathered(placement: Placement, node: torch.fx.Node) -> Factors:
    """The factors over which a marker collects what was cut."""
    fact = placement.typed.facts[node]
    return placement.flow.varies(fact.operands[0]) - placement.flow.varies(node) if fact.collects else NOWHERE


def _scatter_seconds(seconds: Seconds, node: torch.fx.Node, summed: Factors, gathered: Factors) -> float:
    return seconds("reduce_scatter" if summed == gathered else "all_reduce", node, _ranks(summed))


@dataclass
class _Labelling:
    """The values of a placement that may have a gradient, and who reads each."""

    placement: Placement
    seconds: Seconds
    versions: list[Version] = field(default_factory=list)
    readers: dict[Version, list[Version]] = field(default_factory=dict)
    reduced: dict[torch.fx.Node, Factors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        flow, facts = self.placement.flow, self.placement.typed.facts
        for (_, operand), use in flow.uses.items():
            if use.reduce:
                self.reduced[operand] = self.reduced.get(operand, NOWHERE) | use.reduce
        for node in self.placement.typed.graph.nodes:
            if node in flow.gradient:
                self.versions.append((node, False))
                for operand in dict.fromkeys(facts[node].operands):
                    if operand in flow.gradient:
                        read = (operand, bool(flow.use(node, operand).reduce))
                        self.readers.setdefault(read, []).append((node, False))
                if node in self.reduced:
                    self.versions.append((node, True))
                    self.readers.setdefault((node, False), []).append((node, True))

    def labels(self, version: Version) -> list[Factors]:
        """The labels a value may have by itself: with all factors over which it varies, without those it is whole for."""
        node, is_reduced = version
        everything = frozenset(factors_in_use(self.placement))
        must = self.placement.flow.varies(node) - (self.reduced[node] if is_reduced else NOWHERE)
        must_not = self.reduced[node] if is_reduced else NOWHERE
        if node.op in ("placeholder", "get_attr"):
            must_not |= everything - must
        free = sorted(everything - must - must_not)
        return [must | frozenset(some) for n in range(len(free) + 1) for some in itertools.combinations(free, n)]

    def cost(self, version: Version, label: Factors, of: Mapping[Version, Factors]) -> float:
        """What is summed at a value under a label, given those of its readers; infinite if they do not allow it."""
        node = version[0]
        sums = set()
        for reader in self.readers.get(version, ()):
            across = self.reduced[node] if reader[0] is node else self._made_whole(node, reader[0])
            if label - across - of[reader]:
                return math.inf
            sums.add(of[reader] - label - across)
        sums.discard(NOWHERE)
        if sums and isinstance(node.meta["val"], (list, tuple)):
            return math.inf  # a list is no value that could be summed
        total = sum(self.seconds("all_reduce", node, _ranks(over)) for over in sums)
        scattered = label & _gathered(self.placement, node)
        if scattered and not version[1]:
            total += _scatter_seconds(self.seconds, node, scattered, _gathered(self.placement, node))
        return total

    def _made_whole(self, node: torch.fx.Node, reader: torch.fx.Node) -> Factors:
        """The factors for which a step of the graph makes a gradient whole."""
        return _gathered(self.placement, reader) | self.placement.flow.use(reader, node).once

    def everything(self) -> float:
        """The least cost, by trying every labelling."""
        least = math.inf
        for labels in itertools.product(*map(self.labels, self.versions)):
            of = dict(zip(self.versions, labels, strict=True))
            least = min(least, sum(self.cost(version, label, of) for version, label in of.items()))
        return least

    def frontiers(self, bound: float) -> float:
        """The least cost, from the outputs to the inputs, remembering the cheapest way to every distinct frontier.

        The frontier are the labels of those values that a value still to come is read by.
        """
        waiting: dict[Version, set[Version]] = {}
        for version, readers in self.readers.items():
            for reader in readers:
                waiting.setdefault(reader, set()).add(version)
        cheapest: dict[frozenset[tuple[Version, Factors]], float] = {NOWHERE: 0.0}  # type: ignore[dict-item]
        for version in reversed(self.versions):
            before, cheapest = cheapest, {}
            for reader in self.readers.get(version, ()):
                waiting[reader].discard(version)
            for frontier, so_far in before.items():
                of = dict(frontier)
                for label in self.labels(version):
                    cost = so_far + self.cost(version, label, of)
                    if cost <= bound * (1 + 1e-9) and cost < math.inf:
                        left = frozenset((v, own) for v, own in {**of, version: label}.items() if waiting.get(v))
                        cheapest[left] = min(cost, cheapest.get(left, math.inf))
        return min(cheapest.values(), default=math.inf)
