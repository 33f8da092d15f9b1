"""Pass: put the collectives of a placement into its graph.

Legal because every edge reads what the placement says it reads, and the verifier has accepted the placement. Collectives
are Python functions of the value and the ranks; what they are about is in `meta["collective"]`, the cut axes of which
their result is a slice in `meta["held"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..axes.layout import Factors, Layout, Leaf, ProductLayout, SumLayout, layout_of, ordered
from ..axes.operators.collect import collect
from ..axes.term import Axis, Sum, Term, axes_of_dims, resolve
from ..placement.backward import Version
from ..placement.calls import Sent
from ..placement.flow import Flow
from ..placement.place import Placement
from ..placement.routed import Routed
from ..placement.typed import factors_in, is_of_parameters
from ..runtime import collectives
from ..runtime.deferred import Deferred
from ..runtime.logits import CutLogits, Head
from ..runtime.routing import has_own_number, is_between_ends, own_rows
from ..runtime.together import Place
from ..runtime.traced import TracedLogits
from .join import join_calls
from .positions import Positions


@dataclass(frozen=True)
class Inserted:
    """What an inserted node does: kind, phase, what it is about (activation or parameter), over which factors."""

    kind: str
    phase: str
    of: str
    over: Factors


def insert_collectives(placement: Placement, ranks: torch.fx.Node) -> None:
    """Insert every reduce, gather, slice and enter; consumers read the inserted nodes afterwards."""
    _Inserter(placement, ranks).run()


class _Inserter:
    def __init__(self, placement: Placement, ranks: torch.fx.Node) -> None:
        self.placement, self.ranks = placement, ranks
        self.graph = placement.typed.graph
        self.made: dict[Any, torch.fx.Node] = {}
        self.sent: dict[Sent, tuple[torch.fx.Node, Place | None]] = {}
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
        self.positions = None if cut is None else Positions(placement, cut, self._make_on_positions, self.entered)

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
            self._sum_part(part.node, part.over, part.dim, part.positions)
        join_calls(self.graph, self.placement.calls, self.sent, self.ranks)

    def _read(self, flow: Flow, consumer: torch.fx.Node, operand: torch.fx.Node) -> torch.fx.Node:
        value, use, enter = operand, flow.use(consumer, operand), self.entered.get((consumer, operand))
        if self.positions is not None and self.positions.is_cut(operand, use):
            value, enter = self.positions.read(consumer, operand, use), None
        if use.routed:
            value = self._own_rows(value, use.routed)
        if use.reduce and not (self.positions is not None and self.positions.is_cut(operand, use)):
            value = self._reduced(value, use.reduce)
            self._note("all_reduce", "forward", "activation", (operand, True), use.reduce, value)
        if use.once:
            value = self._once(value, use.once)
        if enter is not None:
            of = "parameter" if is_of_parameters(self.placement.typed, operand) else "activation"
            value = self._entered(value, enter.over, of, consumer if operand in flow.written else None)
            self._note("all_reduce", "backward", of, (operand, enter.reduced), enter.over, value)
        if use.take:
            value = self._taken(value, operand, use.take)
        if consumer in self.ends and operand in self.leaving:
            value = self._left(value, self.leaving[operand])
        if consumer.op == "output" and operand in flow.gathers:
            value = self._gathered(value, operand, flow.gathers[operand])
        if consumer.op == "output" and operand in flow.deferred:
            value = self._deferred(value, operand, flow.deferred[operand])
        if consumer.op == "output" and operand in flow.kept:
            value = self._kept(value, operand, flow.kept[operand])
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
                value = self._entered(value, frozenset(cut.over), cut.sums[operand])
                self._note("all_reduce", "backward", cut.sums[operand], (operand, False), frozenset(cut.over), value)
        return self.positions.shut(value) if consumer.op == "output" else value

    def _make_on_positions(
        self,
        key: Any,
        value: torch.fx.Node,
        function: Callable[..., Any],
        kind: str,
        phase: str,
        over: Factors,
        *more: torch.fx.Node,
    ) -> torch.fx.Node:
        cut = self.placement.sequence
        assert cut is not None
        node = self._make(key, value, function, Inserted(kind, phase, "activation", over))
        node.args = (value, self.ranks, *more)
        node.meta["held"] = frozenset() if kind in ("gather_positions", "leave") else frozenset([cut.axis])
        return node

    def _make(
        self,
        key: Any,
        value: torch.fx.Node,
        function: Callable[..., Any],
        inserted: Inserted,
        before: torch.fx.Node | None = None,
        *,
        taken: frozenset[Axis] = frozenset(),
        joined: frozenset[Axis] = frozenset(),
        others: tuple[torch.fx.Node, ...] = (),
    ) -> torch.fx.Node:
        """One node per key, right after the value it is made from, or right before another node. It reads `others` too.

        The result is a slice along the axes its value is, those in `taken` too, those in `joined` no more.
        """
        if key not in self.made:
            with self.graph.inserting_after(value) if before is None else self.graph.inserting_before(before):
                node = self.graph.call_function(function, (value, *others, self.ranks))
            held = value.meta["held"] if "collective" in value.meta else self.placement.flow.held[value]
            node.meta = {"val": value.meta["val"], "collective": inserted, "held": (held | taken) - joined}
            self.made[key] = node
        return self.made[key]

    def _note(
        self, kind: str, phase: str, of: str, version: Version, over: frozenset[Any], node: torch.fx.Node
    ) -> None:
        """Note which node sends what the placement says is sent."""
        self.sent[Sent(kind, phase, of, version, over)] = node, None

    def _own_rows(self, value: torch.fx.Node, routed: Routed) -> torch.fx.Node:
        routing, cut = routed.routing, self.placement.flow.cuts[routed.routing.choice]
        parts, dim, ends = Leaf(routing.choice.size, cut), routed.dim, routing.ends

        def keep_own(value: torch.Tensor, by: torch.Tensor, ranks: Any) -> torch.Tensor:
            count = value.shape[dim]
            own = is_between_ends(by, count, ranks, parts) if ends else has_own_number(by, ranks, parts)
            return own_rows(value, own, dim)

        inserted = Inserted("own", "forward", "activation", cut.over)
        return self._make((value, "own"), value, keep_own, inserted, others=(routing.by,))

    def _reduced(self, value: torch.fx.Node, over: frozenset[Any]) -> torch.fx.Node:
        factors = ordered(over)

        def reduce(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.reduce(value, ranks, factors)

        return self._make((value, over), value, reduce, Inserted("all_reduce", "forward", "activation", factors))

    def _once(self, value: torch.fx.Node, over: frozenset[Any]) -> torch.fx.Node:
        factors = ordered(over)

        def count_once(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.once(value, ranks, factors)

        return self._make((value, over, "once"), value, count_once, Inserted("once", "forward", "activation", factors))

    def _entered(
        self, value: torch.fx.Node, over: frozenset[Any], of: str, before: torch.fx.Node | None = None
    ) -> torch.fx.Node:
        factors = ordered(over)

        def enter(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.enter(value, ranks, factors, of)

        # A value that is written in place must not have a view from before the write: each consumer gets its own.
        inserted = Inserted("all_reduce", "backward", of, factors)
        return self._make((value, over, of, before), value, enter, inserted, before)

    def _left(self, value: torch.fx.Node, over: frozenset[Any]) -> torch.fx.Node:
        factors = ordered(over)

        def leave(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.leave(value, ranks, factors)

        return self._make((value, "leave"), value, leave, Inserted("leave", "backward", "activation", factors))

    def _taken(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        flow = self.placement.flow
        held = flow.held[operand]
        layouts = tuple(self._slice_layout(dim, held, axes) for dim in self.placement.typed.facts[operand].dims)

        def slice_to_rank(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.slice_to_rank(value, ranks, layouts)

        over = ordered(factors_in(axes, flow.cuts))
        inserted = Inserted("slice", "forward", "activation", over)
        return self._make((value, axes), value, slice_to_rank, inserted, taken=axes)

    def _slice_layout(self, term: Term, held: frozenset[Axis], axes: frozenset[Axis]) -> Layout:
        """The layout that cuts only `axes`, on a value whose `held` axes have their local size already."""
        term = resolve(term)
        if isinstance(term, Axis):
            cut = self.placement.flow.cuts.get(term)
            if cut is None or term not in held | axes:
                return Leaf(term.size)
            return Leaf(term.size, cut) if term in axes else Leaf(cut.local)
        parts = tuple(self._slice_layout(part, held, axes) for part in term.parts)
        if not parts:
            return Leaf(1)
        return (SumLayout if isinstance(term, Sum) else ProductLayout)(parts)

    def _gathered(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        dims = self._cut_dims(operand, axes)
        if len(dims) == 1 and dims[0][0] == len(self.placement.typed.facts[operand].dims) - 1:
            dim, layout, over = dims[0]
            if isinstance(layout, Leaf):
                return self._opened(value, dim, layout, over)
        for dim, layout, over in dims:
            value = self._gather_dim(value, dim, layout, over)
        return value

    def _opened(self, value: torch.fx.Node, dim: int, layout: Leaf, over: Factors) -> torch.fx.Node:
        def gather(value: torch.Tensor, ranks: Any) -> Any:
            return _logits(value, Head(ranks, layout))

        inserted, joined = self._gathering(over)
        return self._make((value, dim), value, gather, inserted, joined=joined)

    def _gathering(self, over: Factors) -> tuple[Inserted, frozenset[Axis]]:
        """What a gather is, and the axes that are whole after it."""
        cuts = self.placement.flow.cuts
        joined = frozenset(axis for axis in cuts if set(cuts[axis].over) & set(over))
        return Inserted("all_gather", "forward", "activation", over), joined

    def _cut_dims(self, operand: torch.fx.Node, axes: frozenset[Axis]) -> list[tuple[int, Layout, Factors]]:
        """The dims of a value that are cut along some axes, with their layouts and mesh factors."""
        cuts = {axis: self.placement.flow.cuts[axis] for axis in axes}
        dims = self.placement.typed.facts[operand].dims
        factors = [ordered(factors_in(axes_of_dims([term]) & axes, cuts)) for term in dims]
        return [(i, layout_of(dims[i], cuts), over) for i, over in enumerate(factors) if over]

    def _deferred(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        dims = self._cut_dims(operand, axes)

        def defer(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            def make(local: torch.Tensor) -> torch.Tensor:
                for dim, layout, over in dims:
                    local = collectives.gather(local, ranks, over, dim, layout)
                return local

            # A compiled graph knows no lazy values.
            return make(value) if torch.compiler.is_dynamo_compiling() else Deferred.of(value, make)

        over = ordered(factors_in(axes, self.placement.flow.cuts))
        return self._make((value, "deferred"), value, defer, Inserted("all_gather", "deferred", "activation", over))

    def _kept(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        ((dim, layout, over),) = self._cut_dims(operand, axes)

        def keep(value: torch.Tensor, ranks: Any) -> Any:
            if isinstance(layout, Leaf) and dim == value.dim() - 1:
                return _logits(value, Head(ranks, layout, kept=True))
            return collectives.keep_cut(value, ranks, over, dim, layout)

        over = ordered(factors_in(axes, self.placement.flow.cuts))
        return self._make((value, "kept"), value, keep, Inserted("keep", "forward", "activation", over))

    def _collect(self, node: torch.fx.Node, summed: frozenset[Any]) -> None:
        """A marker becomes a gather, or nothing where its operand is whole."""
        (value,) = self.placement.typed.facts[node].operands
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        for dim, layout, over in self._cut_dims(value, self.placement.flow.held[value]):
            source = self._gather_dim(source, dim, layout, over, ordered(summed & frozenset(over)))
            sent = Sent("all_gather", "forward", "activation", (node, False), frozenset(over), summed)
            self.sent[sent] = source, (dim, layout)
        node.replace_all_uses_with(source)

    def _gather_dim(
        self, value: torch.fx.Node, dim: int, layout: Layout, over: Factors, summed: Factors = ()
    ) -> torch.fx.Node:
        def gather(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.gather(value, ranks, over, dim, layout, summed)

        inserted, joined = self._gathering(over)
        return self._make((value, dim), value, gather, inserted, joined=joined)

    def _sum_part(self, node: torch.fx.Node, over: frozenset[Any], dim: int, positions: tuple[int, ...]) -> None:
        factors, where = ordered(over), torch.tensor(positions)

        def enter_part(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.enter_part(value, ranks, factors, dim, where)

        users = [
            user for user in node.users if "collective" not in user.meta or user.meta["collective"].of != "parameter"
        ]
        made = self._make((node, over, dim), node, enter_part, Inserted("all_reduce", "backward", "parameter", factors))
        for user in users:
            user.replace_input_with(node, made)


def _logits(local: torch.Tensor, head: Head) -> Any:
    """A slice as the cut logits that it is a part of, in a form that dynamo can follow where it traces."""
    return TracedLogits(local, head) if torch.compiler.is_dynamo_compiling() else CutLogits.of(local, head)
