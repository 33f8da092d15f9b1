"""A unit's graph before and after, with what a rank has of every value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ...axes.facts import Fact
from ...axes.layout import Factor, parts_of
from ...axes.term import axes_of
from ...placement.sequence import SequenceCut
from ...placement.state import Flow
from ...placement.typed import is_parameter
from ...planner.plan import UnitPlan
from ...planner.sizing import Sizing
from ...planner.weigh import Collective
from .data import CutAxis, LayerChange
from .gradient import Held, gradient_parts
from .graphs import inputs_of, is_visible, operator_of
from .words import Words

Placed = tuple[torch.fx.Node, Fact]


@dataclass(frozen=True, eq=False)
class Sides:
    """Both graphs of one unit. `facts` has the placed nodes by name, `priced` the collectives, `layers` the new layers;
    `positions` say what is cut over positions."""

    before: torch.fx.Graph
    after: torch.fx.Graph
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
    def gradients(self) -> Mapping[torch.fx.Node, frozenset[Factor]]:
        """Over which mesh factors the gradient of a value arrives as parts of a sum."""
        return gradient_parts(self.after, self.held, self.flow.cuts)

    @cached_property
    def markers(self) -> Mapping[str, str]:
        """The markers of values that are gathered where they are made, by the values' names."""
        return {fact.operands[0].name: node.name for node, fact in self.facts.values() if fact.collects}

    def origin(self, node: torch.fx.Node) -> Placed | None:
        """The placed node that an operator of the graph after was made from; None for what is inserted."""
        return None if "collective" in node.meta else self.facts.get(str(node.meta.get("origin", "")))

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
        if node.op == "output":
            return Held()
        sources = [self.held[source] for source in inputs_of(node)]
        origin = self.origin(node)
        if origin is not None:
            return self._placed_held(*origin, sources)
        inserted = node.meta.get("collective")
        if inserted is not None and inserted.kind == "once":
            return Held(sources[0].axes, sources[0].partial | frozenset(inserted.over))
        if inserted is not None and inserted.kind == "own":
            axes = node.meta["held"]
            return Held(axes, sources[0].partial | frozenset(inserted.over), sources[0].axes - axes)
        sums = inserted is not None and inserted.kind in ("all_reduce", "reduce_scatter")
        if inserted is None or not sums or inserted.phase != "forward":
            return Held(node.meta.get("held", sources[0].axes), sources[0].partial, sources[0].summed)
        partial = sources[0].partial - frozenset(inserted.over)
        if inserted.kind == "reduce_scatter":
            partial = frozenset()
        return Held(node.meta["held"], partial, sources[0].summed if partial else frozenset())

    def _placed_held(self, node: torch.fx.Node, fact: Fact, sources: list[Held]) -> Held:
        axes, partial, cuts = self.flow.held[node], self.flow.partial[node], self.flow.cuts
        if self.positions is not None and node in self.positions.held and node is not self.positions.source:
            return Held(axes | {self.positions.axis})
        if node in self.flow.routed:  # a slice too, of the rows that pick a part of the axis
            axes |= {self.flow.routed[node].routing.choice}
        if not partial:
            return Held(axes)
        own = {axis for term in fact.contracts for axis in axes_of(term) if axis in cuts}
        return Held(axes, partial, frozenset(own).union(*(source.summed for source in sources)))

    def parameters_before(self) -> Iterator[torch.fx.Node]:
        """The parameters that the model reads."""
        return (node for node in self.before.nodes if is_parameter(node))

    def layer_of(self, node: torch.fx.Node) -> LayerChange | None:
        """The parallel layer whose work an operator of the graph after is."""
        if node.op == "call_module":
            return self.layers[str(node.target)]
        if node.op != "call_function" or self.origin(node) is None or "made" in node.meta:
            return None
        tables = [s for source in inputs_of(node) if is_parameter(s := self.source(source))]
        owners = {path for s in tables if (path := str(s.target).rpartition(".")[0]) == node.meta.get("module", "")}
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
