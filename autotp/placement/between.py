"""Pass: from where values are cut to the steps between them, for every edge of the graph."""

from __future__ import annotations

import torch

from ..axes.annotation import annotation
from ..axes.layout import Factor, Leaf, layout_of, ordered
from ..axes.operators.collect import collect
from ..axes.term import Axis, axes_of_dims
from .backward import Backward
from .positions import Positions
from .routed import Routed
from .sequence import SequenceCut
from .state import Edge, Flow
from .steps import Step, Steps, Value
from .transition import CutDim, Transition, cut_dims, slice_layout
from .typed import TypedGraph, factors_in, is_of_parameters


def steps_between(typed: TypedGraph, flow: Flow, backward: Backward, cut: SequenceCut | None = None) -> Steps:
    """Every reduce, gather, slice, enter and leave that a placement says, in the order of the graph's edges."""
    return _Builder(typed, flow, backward, cut).build()


class _Builder:
    def __init__(self, typed: TypedGraph, flow: Flow, backward: Backward, cut: SequenceCut | None) -> None:
        self.typed, self.flow, self.cut = typed, flow, cut
        self.ends = frozenset(typed.ends)
        self.leaving = {leave.node: leave.over for leave in backward.leaves}
        self.summed = {scatter.node: scatter.over for scatter in backward.scatters}
        self.parts = {part.node: [p for p in backward.part_sums if p.node is part.node] for part in backward.part_sums}
        self.entered = {(consumer, enter.node): enter for enter in backward.enters for consumer in enter.consumers}
        self.positions = None if cut is None else Positions(typed.facts, cut, self.entered)
        self.kinds: dict[torch.fx.Node, str] = {}

    def build(self) -> Steps:
        reads: dict[Edge, Step] = {}
        lengths: dict[torch.fx.Node, tuple[torch.fx.Node, int]] = {}
        edges = [
            (user, node) for user in self.typed.graph.nodes for node in user.all_input_nodes if node in self.typed.facts
        ]
        for consumer, operand in edges:
            if self.positions is not None and self.positions.reads_length(consumer, operand):
                lengths |= self.positions.length(consumer, operand)
            elif isinstance(value := self._read(consumer, operand), Step):
                reads[consumer, operand] = value
        markers = self.typed.graph.find_nodes(op="call_function", target=collect)
        return Steps(reads, {marker: self._collected(marker, reads) for marker in markers}, lengths)

    def _read(self, consumer: torch.fx.Node, operand: torch.fx.Node) -> Value:
        use, enter = self.flow.use(consumer, operand), self.entered.get((consumer, operand))
        value = self._given(operand)
        on_positions = self.positions is not None and self.positions.is_cut(operand, use)
        if on_positions:
            assert self.positions is not None
            value, enter = self.positions.read(consumer, operand, use), None
        if use.routed:
            value = self._own_rows(value, operand, use.routed)
        if use.reduce and not on_positions:
            value = Step(Transition("reduce", ordered(use.reduce)), value, about=operand)
        if use.once:
            value = Step(Transition("once", ordered(use.once)), value, about=operand)
        if enter is not None:
            # A value that is written in place must not have a view from before the write: each consumer gets its own.
            before = consumer if operand in self.flow.written else None
            value = self._entered(value, operand, enter.over, self._kind(operand), before)
        if use.take:
            value = self._slice(value, operand, use.take)
        return self._on_positions(consumer, operand, self._handed_on(consumer, operand, value))

    def _given(self, operand: torch.fx.Node) -> Value:
        """A value behind the sums of its gradient's parts, one behind the other."""
        value: Value = operand
        for part in self.parts.get(operand, ()):
            over = ordered(part.over)
            layout = layout_of(self.typed.facts[operand].dims[part.dim], self.flow.cuts)
            record = Transition("enter_part", over, "parameter", ((part.dim, layout, over),), where=part.positions)
            value = Step(record, value, about=operand)
        return value

    def _kind(self, node: torch.fx.Node) -> str:
        if node not in self.kinds:
            self.kinds[node] = "parameter" if is_of_parameters(self.typed, node) else "activation"
        return self.kinds[node]

    def _entered(
        self,
        value: Value,
        operand: torch.fx.Node,
        over: frozenset[Factor],
        of: str,
        before: torch.fx.Node | None = None,
    ) -> Step:
        return Step(Transition("enter", ordered(over), of), value, before=before, about=operand)

    def _own_rows(self, value: Value, operand: torch.fx.Node, routed: Routed) -> Step:
        routing, cut = routed.routing, self.flow.cuts[routed.routing.choice]
        dims = ((routed.dim, Leaf(routing.choice.size, cut), cut.over),)
        return Step(Transition("own", cut.over, dims=dims, ends=routing.ends), value, (routing.by,), about=operand)

    def _slice(self, value: Value, operand: torch.fx.Node, axes: frozenset[Axis]) -> Step:
        held, cuts = self.flow.held[operand], self.flow.cuts
        dims = tuple(
            (dim, slice_layout(term, held, axes, cuts), ordered(factors_in(axes_of_dims([term]) & axes, cuts)))
            for dim, term in enumerate(self.typed.facts[operand].dims)
        )
        return Step(Transition("slice", ordered(factors_in(axes, cuts)), dims=dims), value, about=operand)

    def _handed_on(self, consumer: torch.fx.Node, operand: torch.fx.Node, value: Value) -> Value:
        """A value as it leaves the unit, if it does."""
        if consumer in self.ends and operand in self.leaving:
            value = Step(Transition("leave", ordered(self.leaving[operand])), value, about=operand)
        if consumer.op != "output":
            return value
        if operand in self.flow.gathers:
            value = self._gathered(value, operand, self.flow.gathers[operand])
        for does, kept in (("defer", self.flow.deferred), ("keep", self.flow.kept)):
            if operand in kept:
                over = ordered(factors_in(kept[operand], self.flow.cuts))
                dims = tuple(self._cut_dims(operand, kept[operand]))
                value = Step(Transition(does, over, dims=dims), value, about=operand)
        return value

    def _gathered(self, value: Value, operand: torch.fx.Node, axes: frozenset[Axis]) -> Value:
        dims = self._cut_dims(operand, axes)
        if len(dims) == 1 and dims[0][0] == len(self.typed.facts[operand].dims) - 1 and isinstance(dims[0][1], Leaf):
            return Step(Transition("logits", dims[0][2], dims=(dims[0],)), value, about=operand)
        for dim in dims:
            value = Step(Transition("gather", dim[2], dims=(dim,)), value, about=operand)
        return value

    def _collected(self, marker: torch.fx.Node, reads: dict[Edge, Step]) -> Value:
        """What stands in place of a marker: its operand, gathered along what is cut before it and not behind it."""
        (operand,), summed = self.typed.facts[marker].operands, self.summed.get(marker, frozenset())
        value: Value = reads.get((marker, operand), operand)
        for dim in self._cut_dims(operand, self.flow.collected(marker, operand)):
            of = "buffer" if _is_written(marker) else "activation"
            record = Transition("gather", dim[2], of, (dim,), summed=ordered(summed & frozenset(dim[2])))
            value = Step(record, value, about=marker)
        return value

    def _cut_dims(self, operand: torch.fx.Node, axes: frozenset[Axis]) -> list[CutDim]:
        return cut_dims(self.typed.facts[operand].dims, axes, self.flow.cuts)

    def _on_positions(self, consumer: torch.fx.Node, operand: torch.fx.Node, value: Value) -> Value:
        """A value as a consumer reads it that computes on positions, or hands them on."""
        cut = self.cut
        if cut is None or self.positions is None or not cut.wants_cut(consumer, operand):
            return value
        if not self.positions.is_cut(operand, self.flow.use(consumer, operand)):
            value = self.positions.sliced(operand, value)
            if operand in cut.sums:
                value = self._entered(value, operand, frozenset(cut.over), cut.sums[operand])
        return self.positions.shut(operand, value) if consumer.op == "output" else value


def _is_written(node: torch.fx.Node) -> bool:
    """Returns if a value is only made for what is written into memory."""
    seen, left = {node}, [node]
    while left:
        users = left.pop().users
        if not users:
            return False
        further = [user for user in users if annotation(user).writes is None and user not in seen]
        seen.update(further)
        left += further
    return True
