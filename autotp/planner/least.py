"""What some cuts of a unit compute and read at least, fast enough to ask it of every combination of cuts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ..axes.layout import Cut, Cuts
from ..axes.term import Axis, axes_of, axes_of_dims
from .choose import UnitProblem
from .combinations import elements_of
from .weigh import Weigher
from .work import LeastCounter


class Least:
    """Operations of a forward at some workloads, and elements of the weights that it reads, by cuts. Of each product it is kept
    what it takes under the cuts of the axes that it has."""

    def __init__(self, problem: UnitProblem, weighers: Sequence[Weigher]) -> None:
        self.typing, self.weighers = problem.typing, weighers
        whole = LeastCounter(problem.typing, {}, weighers[0])
        self.products = [(node, self._axes(node)) for node in whole.nodes if whole.flops(node) != 0]
        weights = (self.typing.dims(weight) for weight in whole.weights())
        self.weights = [(dims, frozenset(axes_of_dims(dims))) for dims in weights]
        self.known: dict[tuple[object, tuple[tuple[Axis, Cut], ...]], tuple[float, ...]] = {}

    def flops(self, cuts: Cuts) -> tuple[float, ...]:
        """Operations at least, at each workload."""
        found = [self._of(node, self._within(axes, cuts)) for node, axes in self.products]
        return tuple(map(sum, zip(*found, strict=True))) if found else (0.0,) * len(self.weighers)

    def read(self, cuts: Cuts) -> int:
        """Elements of the weights on a rank that every call reads all of."""
        return sum(elements_of(dims, dict(self._within(axes, cuts))) for dims, axes in self.weights)

    def _axes(self, node: torch.fx.Node) -> frozenset[Axis]:
        fact = self.typing.facts[node]
        values = itertools.chain(fact.outputs, *(self.typing.facts[each].outputs for each in fact.operands))
        picked = () if fact.pick is None else axes_of(fact.pick.choice)
        return frozenset((*axes_of_dims(itertools.chain(*values)), *axes_of_dims(fact.contracts), *picked))

    def _within(self, axes: frozenset[Axis], cuts: Cuts) -> tuple[tuple[Axis, Cut], ...]:
        return tuple((axis, cut) for axis, cut in cuts.items() if axis in axes)

    def _of(self, node: torch.fx.Node, cuts: tuple[tuple[Axis, Cut], ...]) -> tuple[float, ...]:
        key = node, cuts
        if key not in self.known:
            flops = LeastCounter(self.typing, dict(cuts), self.weighers[0]).flops(node)
            self.known[key] = tuple(weigher.sizing.number(flops) for weigher in self.weighers)
        return self.known[key]
