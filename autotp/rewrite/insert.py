"""Pass: put the collectives of a placement into its graph.

Legal because every edge reads what the placement says it reads, which the certificate then judges by the nodes alone.
"""

from __future__ import annotations

from typing import Any

import torch

from ..axes.layout import ordered
from ..axes.operators.collect import collect
from ..placement.backward import Version
from ..placement.calls import Sent
from ..placement.place import Placement
from ..placement.state import Flow
from ..placement.typed import is_of_parameters
from .join import join_calls
from .positions import Positions
from .transitions import Transitions


def insert_collectives(placement: Placement, ranks: torch.fx.Node) -> None:
    """Insert every reduce, gather, slice and enter; consumers read the inserted nodes afterwards."""
    _Inserter(placement, ranks).run()


class _Inserter:
    def __init__(self, placement: Placement, ranks: torch.fx.Node) -> None:
        self.placement, self.ranks = placement, ranks
        self.graph = placement.typed.graph
        self.transitions = Transitions(placement, ranks)
        self.sent: dict[Sent, torch.fx.Node] = {}
        self.edges = [
            (consumer, operand)
            for consumer in self.graph.nodes
            for operand in consumer.all_input_nodes
            if operand in placement.typed.facts
        ]
        self.ends = frozenset(placement.typed.ends())
        self.leaving = {leave.node: leave.over for leave in placement.backward.leaves}
        self.entered = {
            (consumer, enter.node): enter for enter in placement.backward.enters for consumer in enter.consumers
        }
        cut = placement.sequence
        self.positions = None if cut is None else Positions(placement, cut, self.transitions.make, self.entered)

    def run(self) -> None:
        flow, replaced = self.placement.flow, dict[tuple[torch.fx.Node, torch.fx.Node], torch.fx.Node]()
        for consumer, operand in self.edges:
            if self.positions is not None and self.positions.reads_length(consumer, operand):
                continue
            value = self._read(flow, consumer, operand)
            if value is not operand:
                replaced[consumer, operand] = value
        for (consumer, operand), value in replaced.items():
            consumer.replace_input_with(operand, value)
        summed = {scatter.node: scatter.over for scatter in self.placement.backward.scatters}
        for node in [node for node in self.graph.nodes if node.target is collect]:
            self._collect(node, summed.get(node, frozenset()))
        for part in self.placement.backward.part_sums:
            self.transitions.sum_part(part.node, part.over, part.dim, part.positions)
        join_calls(self.graph, self.placement.calls, self.sent, self.ranks)

    def _read(self, flow: Flow, consumer: torch.fx.Node, operand: torch.fx.Node) -> torch.fx.Node:
        value, use, enter = operand, flow.use(consumer, operand), self.entered.get((consumer, operand))
        if self.positions is not None and self.positions.is_cut(operand, use):
            value, enter = self.positions.read(consumer, operand, use), None
        if use.routed:
            value = self.transitions.own_rows(value, use.routed)
        if use.reduce and not (self.positions is not None and self.positions.is_cut(operand, use)):
            value = self.transitions.reduced(value, use.reduce)
            self._note("all_reduce", "forward", "activation", (operand, True), use.reduce, value)
        if use.once:
            value = self.transitions.once(value, use.once)
        if enter is not None:
            of = "parameter" if is_of_parameters(self.placement.typed, operand) else "activation"
            value = self.transitions.entered(value, enter.over, of, consumer if operand in flow.written else None)
            self._note("all_reduce", "backward", of, (operand, enter.reduced), enter.over, value)
        if use.take:
            value = self.transitions.taken(value, operand, use.take)
        if consumer in self.ends and operand in self.leaving:
            value = self.transitions.left(value, self.leaving[operand])
        if consumer.op == "output" and operand in flow.gathers:
            value = self.transitions.gathered(value, operand, flow.gathers[operand])
        if consumer.op == "output" and operand in flow.deferred:
            value = self.transitions.deferred(value, operand, flow.deferred[operand])
        if consumer.op == "output" and operand in flow.kept:
            value = self.transitions.kept(value, operand, flow.kept[operand])
        return self._on_positions(consumer, operand, value)

    def _on_positions(self, consumer: torch.fx.Node, operand: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
        """A value as a consumer reads it that computes on positions, or hands them on."""
        cut = self.placement.sequence
        if cut is None or self.positions is None or not cut.wants_cut(consumer, operand):
            return value
        use = self.placement.flow.use(consumer, operand)
        if not cut.is_cut((operand, bool(use.reduce))):
            value = self.positions.sliced(operand, value)
            if operand in cut.sums:
                value = self.transitions.entered(value, frozenset(cut.over), cut.sums[operand])
                self._note("all_reduce", "backward", cut.sums[operand], (operand, False), frozenset(cut.over), value)
        return self.positions.shut(value) if consumer.op == "output" else value

    def _note(
        self, kind: str, phase: str, of: str, version: Version, over: frozenset[Any], node: torch.fx.Node
    ) -> None:
        """Note which node sends what the placement says is sent."""
        self.sent[Sent(kind, phase, of, version, over)] = node

    def _collect(self, node: torch.fx.Node, summed: frozenset[Any]) -> None:
        """A marker becomes a gather, which stands for it, or nothing where its operand is whole."""
        (value,) = self.placement.typed.facts[node].operands
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        for dim, layout, over in self.transitions.cut_dims(value, self.placement.flow.held[value]):
            source = self.transitions.gather_dim(source, dim, layout, over, ordered(summed & frozenset(over)))
            self.sent[Sent("all_gather", "forward", "activation", (node, False), frozenset(over), summed)] = source
        if source is not node.args[0]:
            source.meta |= {"fact": node.meta["fact"], "marks": node.meta["origin"]}
        node.replace_all_uses_with(source)
