"""What some cuts of a unit compute and read at least, fast enough to ask it of every combination of cuts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import sympy
import torch

from ..axes.facts import Typing
from ..axes.layout import Cut, Cuts, ordered, parts_of
from ..axes.term import Axis, axes_of, axes_of_dims
from ..placement.state import Flow
from ..placement.typed import cut_in, factors_in
from .attended import attended, unrepeated
from .choose import UnitProblem
from .combinations import elements_of
from .counter import Counter
from .weigh import Weigher


class Least:
    """Operations of a forward at some workloads, and elements of what it reads, by cuts. Of each product it is kept what it takes
    under the cuts of the axes that it has."""

    def __init__(self, problem: UnitProblem, weighers: Sequence[Weigher]) -> None:
        self.typing, self.weighers = problem.typing, weighers
        whole = LeastCounter(problem.typing, {}, weighers[0])
        counted = (node for node in whole.nodes if whole.flops(node) != 0 or whole.reread_by(node) != 0)
        self.products = [(node, self._axes(node)) for node in counted]
        weights = (self.typing.dims(weight) for weight in whole.weights())
        self.weights = [(dims, frozenset(axes_of_dims(dims))) for dims in weights]
        self.known: dict[tuple[object, tuple[tuple[Axis, Cut], ...]], list[tuple[float, float]]] = {}

    def work(self, cuts: Cuts) -> list[tuple[float, float]]:
        """At each workload operations at least, and elements of what writing one more token reads of all before it."""
        found = [self._of(node, self._within(axes, cuts)) for node, axes in self.products]
        return [
            (sum(flops), sum(read)) for flops, read in (zip(*each, strict=True) for each in zip(*found, strict=True))
        ] or [(0.0, 0.0)] * len(self.weighers)

    def read(self, cuts: Cuts) -> int:
        """Elements of the weights on a rank that every call reads all of."""
        return sum(elements_of(dims, dict(self._within(axes, cuts))) for dims, axes in self.weights)

    def _axes(self, node: torch.fx.Node) -> frozenset[Axis]:
        fact = self.typing.facts[node]
        read = [unrepeated(each, self.typing.facts) for each in attended(node, self.typing.facts)]
        values = itertools.chain(fact.outputs, *(self.typing.facts[each].outputs for each in (*fact.operands, *read)))
        picked = () if fact.pick is None else axes_of(fact.pick.choice)
        return frozenset((*axes_of_dims(itertools.chain(*values)), *axes_of_dims(fact.contracts), *picked))

    def _within(self, axes: frozenset[Axis], cuts: Cuts) -> tuple[tuple[Axis, Cut], ...]:
        return tuple((axis, cut) for axis, cut in cuts.items() if axis in axes)

    def _of(self, node: torch.fx.Node, cuts: tuple[tuple[Axis, Cut], ...]) -> list[tuple[float, float]]:
        key = node, cuts
        if key not in self.known:
            counter = LeastCounter(self.typing, dict(cuts), self.weighers[0])
            flops, read = counter.flops(node), counter.reread_by(node)
            self.known[key] = [(w.sizing.number(flops), w.sizing.number(read)) for w in self.weighers]
        return self.known[key]


class LeastCounter(Counter):
    """Counts what a rank computes at least under some cuts: as if every value were cut along all of them that it has."""

    def __init__(self, typing: Typing, cuts: Cuts, weigher: Weigher) -> None:
        self.facts, self.weigher, self.cut = typing.facts, weigher, None
        self.nodes = list(typing.facts)
        self.flow = Flow(cuts, _Held(typing, cuts), {}, {}, {}, {}, {}, {}, frozenset(), frozenset())

    def _rows(self, node: torch.fx.Node) -> sympy.Rational:
        pick = self.facts[node].pick
        over = factors_in(set(axes_of(pick.choice)), self.flow.cuts) if pick is not None else frozenset()
        return sympy.Rational(1, parts_of(ordered(over)))


class _Held(dict[torch.fx.Node, frozenset[Axis]]):
    """The cut axes that a value has, found when they are asked for."""

    def __init__(self, typing: Typing, cuts: Cuts) -> None:
        super().__init__()
        self.typing, self.cuts = typing, cuts

    def __missing__(self, node: torch.fx.Node) -> frozenset[Axis]:
        axes = axes_of_dims(itertools.chain(*self.typing.facts[node].outputs))
        return self.setdefault(node, cut_in(axes, self.cuts))
