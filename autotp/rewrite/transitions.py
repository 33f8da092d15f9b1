"""The nodes that placement puts between values, made once for each key.

What a node does is one record, `meta["collective"]`, and its function is made from that (see `functions`).
"""

from __future__ import annotations

from typing import Any

import torch

from ..axes.layout import Factors, Layout, Leaf, layout_of, ordered
from ..axes.term import Axis, axes_of_dims
from ..placement.place import Placement
from ..placement.routed import Routed
from ..placement.transition import CutDim, Transition, slice_layout
from ..placement.typed import factors_in
from .functions import function_of


class Transitions:
    """The nodes of one placement, in its graph."""

    def __init__(self, placement: Placement, ranks: torch.fx.Node) -> None:
        self.placement, self.ranks = placement, ranks
        self.graph = placement.typed.graph
        self._made: dict[Any, torch.fx.Node] = {}

    def make(
        self,
        key: Any,
        value: torch.fx.Node,
        record: Transition,
        before: torch.fx.Node | None = None,
        others: tuple[torch.fx.Node, ...] = (),
    ) -> torch.fx.Node:
        """One node per key, right after the value it is made from, or right before another node. It reads `others` too."""
        if key not in self._made:
            with self.graph.inserting_after(value) if before is None else self.graph.inserting_before(before):
                node = self.graph.call_function(function_of(record), (value, *others, self.ranks))
            node.meta = {"val": value.meta["val"], "collective": record}
            self._made[key] = node
        return self._made[key]

    def own_rows(self, value: torch.fx.Node, routed: Routed) -> torch.fx.Node:
        routing, cut = routed.routing, self.placement.flow.cuts[routed.routing.choice]
        dims = ((routed.dim, Leaf(routing.choice.size, cut), cut.over),)
        record = Transition("own", cut.over, dims=dims, ends=routing.ends)
        return self.make((value, "own"), value, record, others=(routing.by,))

    def reduced(self, value: torch.fx.Node, over: frozenset[Any]) -> torch.fx.Node:
        return self.make((value, over), value, Transition("reduce", ordered(over)))

    def once(self, value: torch.fx.Node, over: frozenset[Any]) -> torch.fx.Node:
        return self.make((value, over, "once"), value, Transition("once", ordered(over)))

    def entered(
        self, value: torch.fx.Node, over: frozenset[Any], of: str, before: torch.fx.Node | None = None
    ) -> torch.fx.Node:
        # A value that is written in place must not have a view from before the write: each consumer gets its own.
        return self.make((value, over, of, before), value, Transition("enter", ordered(over), of), before)

    def left(self, value: torch.fx.Node, over: frozenset[Any]) -> torch.fx.Node:
        return self.make((value, over, "leave"), value, Transition("leave", ordered(over)))

    def taken(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        flow = self.placement.flow
        held, over = flow.held[operand], ordered(factors_in(axes, flow.cuts))
        dims = tuple(
            (
                dim,
                slice_layout(term, held, axes, flow.cuts),
                ordered(factors_in(axes_of_dims([term]) & axes, flow.cuts)),
            )
            for dim, term in enumerate(self.placement.typed.facts[operand].dims)
        )
        return self.make((value, axes), value, Transition("slice", over, dims=dims))

    def gathered(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        dims = self.cut_dims(operand, axes)
        if len(dims) == 1 and dims[0][0] == len(self.placement.typed.facts[operand].dims) - 1:
            ((dim, layout, over),) = dims
            if isinstance(layout, Leaf):
                record = Transition("logits", over, dims=((dim, layout, over),))
                return self.make((value, dim), value, record)
        for dim, layout, over in dims:
            value = self.gather_dim(value, dim, layout, over)
        return value

    def cut_dims(self, operand: torch.fx.Node, axes: frozenset[Axis]) -> list[CutDim]:
        """The dims of a value that are cut along some axes, with their layouts and mesh factors."""
        cuts = {axis: self.placement.flow.cuts[axis] for axis in axes}
        dims = self.placement.typed.facts[operand].dims
        factors = [ordered(factors_in(axes_of_dims([term]) & axes, cuts)) for term in dims]
        return [(i, layout_of(dims[i], cuts), over) for i, over in enumerate(factors) if over]

    def deferred(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        record = self._of_dims("defer", operand, axes)
        return self.make((value, "deferred"), value, record)

    def kept(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        return self.make((value, "kept"), value, self._of_dims("keep", operand, axes))

    def _of_dims(self, does: str, operand: torch.fx.Node, axes: frozenset[Axis]) -> Transition:
        over = ordered(factors_in(axes, self.placement.flow.cuts))
        return Transition(does, over, dims=tuple(self.cut_dims(operand, axes)))

    def gather_dim(
        self, value: torch.fx.Node, dim: int, layout: Layout, over: Factors, summed: Factors = ()
    ) -> torch.fx.Node:
        record = Transition("gather", over, dims=((dim, layout, over),), summed=summed)
        return self.make((value, dim), value, record)

    def sum_part(self, node: torch.fx.Node, over: frozenset[Any], dim: int, positions: tuple[int, ...]) -> None:
        """Sum the gradient of a parameter at some positions; other sums of its parts come before."""
        source, factors = node, ordered(over)
        while (before := next(filter(_is_part_sum, source.users), None)) is not None:
            source = before
        layout = layout_of(self.placement.typed.facts[node].dims[dim], self.placement.flow.cuts)
        record = Transition("enter_part", factors, "parameter", ((dim, layout, factors),), where=positions)
        users = list(source.users)
        made = self.make((node, over, dim), source, record)
        for user in users:
            user.replace_input_with(source, made)


def _is_part_sum(node: torch.fx.Node) -> bool:
    record = node.meta.get("collective")
    return isinstance(record, Transition) and record.does == "enter_part"
