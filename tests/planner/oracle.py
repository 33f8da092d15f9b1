"""Brute force that the planner must equal, written from the statements of its two problems and not from its code.

The cuts: every chain is whole or spread over the ranks, in every factorisation and every order of the ranks. Everything
is tried; the best has the fewest parameter elements on a rank, and of those the least time.

The backward: every value gets the set of mesh factors over which its gradient varies. A value's gradient can only vary
where the gradients of all who read it do, except that a reduction or a collection makes whole what varied before it, and
that a whole value which joins a partial sum has the gradient of that sum, which every rank has. It
must vary where the value itself does, and must not at inputs, parameters and reduced values. Where a reader's gradient
varies over more factors than the value's, the value's is summed: once for all readers with the same further factors. What is
summed or gathered alike, and not one behind the other, may be sent in one call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch

from autotp.axes.annotation import annotation
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

    parameters = {node.target: node for node in problem.graph.nodes if annotation(node).parameter}
    return sum(math.prod(map(local, problem.typing.dims(node))) for node in parameters.values())


# -- backward ------------------------------------------------------------------------------------------------------

Factors: TypeAlias = frozenset[Factor]
# A value before or after its reduction.
Version: TypeAlias = tuple[torch.fx.Node, bool]

NOWHERE: Factors = frozenset()
# Of more values than this, the ways to divide them among calls are too many to try.
MOST = 5


class Class(NamedTuple):
    """What may be sent together: the same collectives over the same factors, forward and backward, of values of one stage."""

    collectives: tuple[tuple[str, Factors], ...]
    stage: int
    is_parameter: bool
    dtype: torch.dtype


# The bytes of a value that is sent, and the number of its node; none for a parameter, which is behind nothing.
Value: TypeAlias = tuple[float, int]
# All values of each class that are sent.
Sendings: TypeAlias = frozenset[tuple[Class, tuple[Value, ...]]]


def chosen_seconds(placement: Placement, weigher: Weigher) -> float:
    """What the sums of gradients cost in a placement, and the gathers that come with them, by the calls that it makes."""
    found = _Labelling(placement, weigher)
    total = 0.0
    for call in placement.calls:
        record, nodes = call[0].record, [step.about for step in call]
        if record.does == "gather" and placement.typed.facts[nodes[0]].collects and nodes[0] in placement.flow.gradient:
            sizes = tuple(map(found.whole_bytes, nodes))
            total += found.call_seconds("all_gather", _ranks(record.over), sizes)
            if record.summed:
                kind = "reduce_scatter" if record.summed == record.over else "all_reduce"
                total += found.call_seconds(kind, _ranks(record.summed), sizes)
        elif record.does == "enter":
            sizes = tuple(map(found.local_bytes, nodes))
            total += found.call_seconds("all_reduce", _ranks(record.over), sizes)
    return total


def least_seconds(placement: Placement, weigher: Weigher, bound: float = math.inf) -> float:
    """What the cheapest of all labellings costs at least; infinite if none costs at most the bound.

    First as if all values of a stage could be sent together, which is never more: where that is the bound, nothing is cheaper.
    """
    least = _Labelling(placement, weigher, keeps_apart=False).frontiers(bound)
    if least >= bound * (1 - 1e-9):
        return least
    return _Labelling(placement, weigher).frontiers(bound)


def least_seconds_of_all(placement: Placement, weigher: Weigher) -> float:
    """The same by writing down every labelling, for graphs of few values."""
    return _Labelling(placement, weigher).everything()


def factors_in_use(placement: Placement) -> list[Factor]:
    """The mesh factors over which some value varies."""
    return sorted({factor for node in placement.flow.held for factor in placement.flow.varies(node)})


def _ranks(over: Iterable[Factor]) -> int:
    return math.prod(factor.size for factor in over)


def _gathered(placement: Placement, node: torch.fx.Node) -> Factors:
    """The factors over which a marker collects what was cut."""
    fact = placement.typed.facts[node]
    return placement.flow.varies(fact.operands[0]) - placement.flow.varies(node) if fact.collects else NOWHERE


@dataclass
class _Labelling:
    """The values of a placement that may have a gradient, and who reads each."""

    placement: Placement
    weigher: Weigher
    keeps_apart: bool = True
    versions: list[Version] = field(default_factory=list)
    readers: dict[Version, list[Version]] = field(default_factory=dict)
    reduced: dict[torch.fx.Node, Factors] = field(default_factory=dict)
    stages: dict[torch.fx.Node, int] = field(default_factory=dict)
    of_parameters: set[torch.fx.Node] = field(default_factory=set)
    numbers: dict[torch.fx.Node, int] = field(default_factory=dict)
    behind: dict[int, set[int]] = field(default_factory=dict)
    known: dict[tuple[Class, tuple[Value, ...]], float] = field(default_factory=dict)

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
        self._number_stages()

    def _number_stages(self) -> None:
        """Stages follow one another: all values of one are behind all values of those before, so that none of them can be
        sent together with one of another stage. What is made of parameters alone is in none."""
        for node, fact in self.placement.typed.facts.items():
            if annotation(node).parameter or (fact.operands and self.of_parameters.issuperset(fact.operands)):
                self.of_parameters.add(node)
        nodes = [node for node in self.placement.typed.graph.nodes if node.op == "call_function"]
        self.numbers = {node: number for number, node in enumerate(nodes)}
        for node, number in self.numbers.items():
            sources = [self.numbers[source] for source in node.all_input_nodes if source in self.numbers]
            self.behind[number] = set(sources).union(*(self.behind[source] for source in sources))
        own = [n for n in nodes if n in self.placement.flow.gradient and n not in self.of_parameters]
        places, stage = [self.numbers[node] for node in own], 0
        for count, node in enumerate(own):
            if all(set(places[:count]) <= self.behind[later] for later in places[count:]):
                stage += 1
            self.stages[node] = stage

    def local_bytes(self, node: torch.fx.Node) -> float:
        """Bytes of what one rank holds of a value."""
        held, facts = self.placement.flow.held, self.placement.typed.facts

        def share(term: Term) -> float:
            term = resolve(term)
            if isinstance(term, Axis):
                cut = self.placement.flow.cuts[term] if term in held[node] else None
                return cut.padded / math.prod(f.size for f in cut.over) / term.size if cut else 1.0
            if isinstance(term, Product):
                return math.prod(map(share, term.parts))
            return sum(share(part) * part.size for part in term.parts) / term.size

        return self.whole_bytes(node) * math.prod(map(share, facts[node].dims))

    def whole_bytes(self, node: torch.fx.Node) -> float:
        """Bytes of a value at the workload."""
        sizing = self.weigher.sizing
        return sizing.number(sizing.elements(node.meta["val"])) * self.weigher.workload.element_bytes

    def call_seconds(self, kind: str, ranks: int, sizes: tuple[float, ...]) -> float:
        """The time of one call that sends values of these bytes: several are copied side by side first."""
        machine, total = self.weigher.machine, math.fsum(sizes)
        copied = 2 * total / (machine.memory_gbps * 1e9) if len(sizes) > 1 else 0.0
        return machine.seconds(kind, total, ranks) + copied

    def best_seconds(self, of: Class, values: tuple[Value, ...]) -> float:
        """The time of sending values of one class, at least."""
        if (of, values) not in self.known:

            def seconds(sizes: Iterable[float]) -> float:
                own = tuple(sizes)
                return sum(self.call_seconds(kind, _ranks(over), own) for kind, over in of.collectives)

            if len(values) <= MOST and not self._are_apart(values):
                ways = [
                    math.fsum(seconds(size for size, _ in part) for part in parts)
                    for parts in _partitions(values)
                    if all(map(self._are_apart, parts))
                ]
            else:
                # Some of the smallest in one call, and the others by themselves: two calls of several values cost a latency
                # more, and copy no less.
                sizes = sorted(size for size, _ in values)
                ways = [
                    (seconds(sizes[:n]) if n else 0.0) + math.fsum(seconds([size]) for size in sizes[n:])
                    for n in range(len(sizes) + 1)
                ]
                # There are as many calls as values one behind the other: all but one may send one value, and copy nothing.
                # Or there are more calls.
                more, total, latency = self._longest_chain(values) - 1, math.fsum(sizes), seconds([0.0])
                copied = math.fsum(sizes[: len(sizes) - more])
                as_many = more * latency + seconds([copied, 0.0]) - seconds([copied]) + seconds([total])
                if len(sizes) > 1:
                    ways = [max(min(ways), min(as_many, seconds([total]) + (more + 1) * latency))]
            self.known[of, values] = min(ways)
        return self.known[of, values]

    def _longest_chain(self, values: Iterable[Value]) -> int:
        length: dict[int, int] = {}
        for number in sorted(number for _, number in values if number >= 0):
            length[number] = 1 + max((length[n] for n in self.behind[number] & length.keys()), default=0)
        return max(length.values(), default=1)

    def _are_apart(self, values: Iterable[Value]) -> bool:
        """Returns if none of some values is behind another one, so that they may be sent together."""
        numbers = {number for _, number in values if number >= 0}
        return not any(self.behind[number] & numbers for number in numbers)

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

    def sent(self, version: Version, label: Factors, of: Mapping[Version, Factors]) -> list[tuple[Class, Value]] | None:
        """What is sent for a value under a label, given those of its readers; None if they do not allow it."""
        node = version[0]
        sums = set()
        for reader in self.readers.get(version, ()):
            across = self.reduced[node] if reader[0] is node else self._made_whole(node, reader[0])
            if label - across - of[reader]:
                return None
            sums.add(of[reader] - label - across)
        sums.discard(NOWHERE)
        if sums and isinstance(node.meta["val"], (list, tuple)):
            return None  # a list is no value that could be summed
        stage = self.stages.get(node, 0)
        if isinstance(node.meta["val"], (list, tuple)):
            return []
        alike = stage, node in self.of_parameters, node.meta["val"].dtype
        number = self.numbers.get(node, -1) if self.keeps_apart and node not in self.of_parameters else -1
        found = [(Class((("all_reduce", over),), *alike), (self.local_bytes(node), number)) for over in sums]
        gathered = _gathered(self.placement, node)
        if gathered and not version[1]:
            scattered = label & gathered
            back = (("reduce_scatter" if scattered == gathered else "all_reduce", scattered),) if scattered else ()
            found.append((Class((("all_gather", gathered), *back), *alike), (self.whole_bytes(node), number)))
        return found

    def _made_whole(self, node: torch.fx.Node, reader: torch.fx.Node) -> Factors:
        """The factors for which a step of the graph makes a gradient whole."""
        return _gathered(self.placement, reader) | self.placement.flow.use(reader, node).once

    def cost(self, sendings: Sendings) -> float:
        """The time of all that is sent."""
        return math.fsum(self.best_seconds(of, values) for of, values in sendings)

    def everything(self) -> float:
        """The least cost, by trying every labelling."""
        least = math.inf
        for labels in itertools.product(*map(self.labels, self.versions)):
            of = dict(zip(self.versions, labels, strict=True))
            sent = [self.sent(version, label, of) for version, label in of.items()]
            if all(each is not None for each in sent):
                least = min(least, self.cost(_with(frozenset(), itertools.chain.from_iterable(filter(None, sent)))))
        return least

    def frontiers(self, bound: float) -> float:
        """The least cost, from the outputs to the inputs, remembering what was sent on the way to every distinct frontier.

        The frontier are the labels of those values that a value still to come is read by.
        """
        waiting: dict[Version, set[Version]] = {}
        for version, readers in self.readers.items():
            for reader in readers:
                waiting.setdefault(reader, set()).add(version)
        known: set[tuple[frozenset[tuple[Version, Factors]], Sendings]] = {(frozenset(), frozenset())}
        for version in reversed(self.versions):
            before, known = known, set()
            for reader in self.readers.get(version, ()):
                waiting[reader].discard(version)
            for frontier, so_far in before:
                of = dict(frontier)
                for label in self.labels(version):
                    sent = self.sent(version, label, of)
                    sendings = None if sent is None else _with(so_far, sent)
                    if sendings is not None and self.cost(sendings) <= bound * (1 + 1e-9):
                        left = frozenset((v, own) for v, own in {**of, version: label}.items() if waiting.get(v))
                        known.add((left, sendings))
        return min((self.cost(sendings) for _, sendings in known), default=math.inf)


def _with(so_far: Sendings, sent: Iterable[tuple[Class, Value]]) -> Sendings:
    found = dict(so_far)
    for of, value in sent:
        found[of] = tuple(sorted((*found.get(of, ()), value)))
    return frozenset(found.items())


def _partitions(values: tuple[Value, ...]) -> Iterator[list[tuple[Value, ...]]]:
    """Every way to divide some values among calls."""
    if not values:
        yield []
        return
    first, rest = values[0], values[1:]
    for parts in _partitions(rest):
        yield [(first,), *parts]
        for i, part in enumerate(parts):
            yield [*parts[:i], (first, *part), *parts[i + 1 :]]
