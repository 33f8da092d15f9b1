"""A unit's graph before and after, with what a rank has of every value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ...axes.annotation import annotation
from ...axes.facts import Fact
from ...axes.layout import Factor, parts_of
from ...axes.term import Axis, axes_of
from ...placement.certificate.check import Certificate
from ...placement.placed import placed_as
from ...placement.sequence import SequenceCut
from ...placement.state import Flow
from ...placement.typed import is_parameter
from ...planner.plan import UnitPlan
from ...planner.sizing import Sizing
from ...planner.weigh import Collective
from .data import CutAxis, LayerChange
from .graphs import inputs_of, is_visible, operator_of
from .words import Words

Placed = tuple[torch.fx.Node, Fact]


@dataclass(frozen=True)
class Held:
    """What a rank has of a value: the axes it is a slice along, the mesh factors it is a partial sum over, and the axes
    that it sums over."""

    axes: frozenset[Axis] = frozenset()
    partial: frozenset[Factor] = frozenset()
    summed: frozenset[Axis] = frozenset()

    @property
    def state(self) -> str:
        """`whole`, `slice` or `partial`."""
        return "partial" if self.partial else "slice" if self.axes else "whole"


@dataclass(frozen=True, eq=False)
class Sides:
    """Both graphs of one unit, and what the certificate of the one after says. `facts` has the placed nodes by name, `priced`
    the collectives, `layers` the new layers; `positions` say what is cut over positions."""

    before: torch.fx.Graph
    after: torch.fx.Graph
    certificate: Certificate
    flow: Flow
    facts: Mapping[str, Placed]
    priced: tuple[Collective, ...]
    sizing: Sizing
    layers: Mapping[str, LayerChange]
    positions: SequenceCut | None = None
    held: dict[torch.fx.Node, Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.after.nodes:
            if is_visible(node):
                self.held[node] = self._held(node)

    @cached_property
    def words(self) -> Words:
        """Texts for the values of this unit."""
        cut = self.positions
        positions = {} if cut is None else {cut.axis: parts_of(cut.over)}
        return Words(self.sizing, dict(self.facts.values()), self.flow.cuts, positions)

    @cached_property
    def markers(self) -> Mapping[str, str]:
        """The markers of values that are gathered where they are made, by the values' names."""
        return {fact.operands[0].name: node.name for node, fact in self.facts.values() if fact.collects}

    def origin(self, node: torch.fx.Node) -> Placed | None:
        """The placed node that an operator of the graph after was made from; None for what is inserted."""
        return None if placed_as(node).collective is not None else self.facts.get(placed_as(node).origin)

    def source(self, node: torch.fx.Node) -> torch.fx.Node:
        """The operator or input that an inserted node is about."""
        while self.origin(node) is None:
            node = next(inputs_of(node))
        return node

    def placed(self, node: torch.fx.Node) -> Placed:
        """The placed node that has the terms of a node of the graph after."""
        found = self.origin(self.source(node))
        assert found is not None
        return found

    def _held(self, node: torch.fx.Node) -> Held:
        value = self.certificate.values.get(node)
        if value is None:
            return Held()
        # Rows that pick a part of an axis are a slice too, of those that pick a rank's.
        axes = value.axes if value.routed is None else value.axes | {value.routed.routing.choice}
        return Held(axes, value.partial, self._summed(node) if value.partial else frozenset())

    def _summed(self, node: torch.fx.Node) -> frozenset[Axis]:
        """The axes that a partial sum is one over."""
        sources = [self.held[source] for source in inputs_of(node)]
        summed = frozenset[Axis]().union(*(source.summed for source in sources))
        if placed_as(node).collective is not None:
            return summed | (sources[0].axes - self.certificate.values[node].axes)
        fact, cuts = placed_as(node).fact, self.flow.cuts
        contracts = () if fact is None else fact.contracts
        return summed | {axis for term in contracts for axis in axes_of(term) if axis in cuts}

    def parameters_before(self) -> Iterator[torch.fx.Node]:
        """The parameters that the model reads."""
        return (node for node in self.before.nodes if is_parameter(node))

    def layer_of(self, node: torch.fx.Node) -> LayerChange | None:
        """The parallel layer whose work an operator of the graph after is."""
        if node.op == "call_module":
            return self.layers[str(node.target)]
        if node.op != "call_function" or self.origin(node) is None or placed_as(node).made:
            return None
        tables = [s for source in inputs_of(node) if is_parameter(s := self.source(source))]
        owners = {path for s in tables if (path := str(s.target).rpartition(".")[0]) == annotation(node).module}
        return next((self.layers[path] for path in owners if path in self.layers), None)

    def operator(self, node: torch.fx.Node) -> str:
        """What a node of the graph after does, in a word: the class of a layer, the operator's name."""
        layer = self.layer_of(node)
        return layer.after if layer else operator_of(node)

    def cut_axes(self, plan: UnitPlan) -> tuple[CutAxis, ...]:
        """The unit's cut axes."""
        parameters = {p.name: p for p in plan.parameters}
        held = [
            (parameters[str(node.target)], fact.dims) for node, fact in self.facts.values() if node.target in parameters
        ]
        return self.words.cut_axes(held)
