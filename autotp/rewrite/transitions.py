"""The nodes that placement puts between values: each is a Python function of a value and the ranks, made once for each key.

What a node is about is in `meta["collective"]`, the cut axes of which its result is a slice in `meta["held"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..axes.layout import Factors, Layout, Leaf, ProductLayout, SumLayout, layout_of, ordered
from ..axes.term import Axis, Sum, Term, axes_of_dims, resolve
from ..placement.place import Placement
from ..placement.routed import Routed
from ..placement.typed import factors_in
from ..runtime import collectives
from ..runtime.deferred import Deferred
from ..runtime.logits import CutLogits, Head
from ..runtime.routing import has_own_number, is_between_ends, own_rows
from ..runtime.traced import TracedLogits


@dataclass(frozen=True)
class Inserted:
    """What an inserted node does: kind, phase, what it is about (activation or parameter), over which factors."""

    kind: str
    phase: str
    of: str
    over: Factors


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
        if key not in self._made:
            with self.graph.inserting_after(value) if before is None else self.graph.inserting_before(before):
                node = self.graph.call_function(function, (value, *others, self.ranks))
            held = value.meta["held"] if "collective" in value.meta else self.placement.flow.held[value]
            node.meta = {"val": value.meta["val"], "collective": inserted, "held": (held | taken) - joined}
            self._made[key] = node
        return self._made[key]

    def own_rows(self, value: torch.fx.Node, routed: Routed) -> torch.fx.Node:
        routing, cut = routed.routing, self.placement.flow.cuts[routed.routing.choice]
        parts, dim, ends = Leaf(routing.choice.size, cut), routed.dim, routing.ends

        def keep_own(value: torch.Tensor, by: torch.Tensor, ranks: Any) -> torch.Tensor:
            count = value.shape[dim]
            own = is_between_ends(by, count, ranks, parts) if ends else has_own_number(by, ranks, parts)
            return own_rows(value, own, dim)

        inserted = Inserted("own", "forward", "activation", cut.over)
        return self.make((value, "own"), value, keep_own, inserted, others=(routing.by,))

    def reduced(self, value: torch.fx.Node, over: frozenset[Any]) -> torch.fx.Node:
        factors = ordered(over)

        def reduce(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.reduce(value, ranks, factors)

        return self.make((value, over), value, reduce, Inserted("all_reduce", "forward", "activation", factors))

    def once(self, value: torch.fx.Node, over: frozenset[Any]) -> torch.fx.Node:
        factors = ordered(over)

        def count_once(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.once(value, ranks, factors)

        return self.make((value, over, "once"), value, count_once, Inserted("once", "forward", "activation", factors))

    def entered(
        self, value: torch.fx.Node, over: frozenset[Any], of: str, before: torch.fx.Node | None = None
    ) -> torch.fx.Node:
        factors = ordered(over)

        def enter(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.enter(value, ranks, factors, of)

        # A value that is written in place must not have a view from before the write: each consumer gets its own.
        inserted = Inserted("all_reduce", "backward", of, factors)
        return self.make((value, over, of, before), value, enter, inserted, before)

    def left(self, value: torch.fx.Node, over: frozenset[Any]) -> torch.fx.Node:
        factors = ordered(over)

        def leave(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.leave(value, ranks, factors)

        return self.make((value, "leave"), value, leave, Inserted("leave", "backward", "activation", factors))

    def taken(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        flow = self.placement.flow
        held = flow.held[operand]
        layouts = tuple(self._slice_layout(dim, held, axes) for dim in self.placement.typed.facts[operand].dims)

        def slice_to_rank(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.slice_to_rank(value, ranks, layouts)

        over = ordered(factors_in(axes, flow.cuts))
        inserted = Inserted("slice", "forward", "activation", over)
        return self.make((value, axes), value, slice_to_rank, inserted, taken=axes)

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

    def gathered(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        dims = self.cut_dims(operand, axes)
        if len(dims) == 1 and dims[0][0] == len(self.placement.typed.facts[operand].dims) - 1:
            dim, layout, over = dims[0]
            if isinstance(layout, Leaf):
                return self._opened(value, dim, layout, over)
        for dim, layout, over in dims:
            value = self.gather_dim(value, dim, layout, over)
        return value

    def _opened(self, value: torch.fx.Node, dim: int, layout: Leaf, over: Factors) -> torch.fx.Node:
        def gather(value: torch.Tensor, ranks: Any) -> Any:
            return _logits(value, Head(ranks, layout))

        inserted, joined = self._gathering(over)
        return self.make((value, dim), value, gather, inserted, joined=joined)

    def _gathering(self, over: Factors) -> tuple[Inserted, frozenset[Axis]]:
        """What a gather is, and the axes that are whole after it."""
        cuts = self.placement.flow.cuts
        joined = frozenset(axis for axis in cuts if set(cuts[axis].over) & set(over))
        return Inserted("all_gather", "forward", "activation", over), joined

    def cut_dims(self, operand: torch.fx.Node, axes: frozenset[Axis]) -> list[tuple[int, Layout, Factors]]:
        """The dims of a value that are cut along some axes, with their layouts and mesh factors."""
        cuts = {axis: self.placement.flow.cuts[axis] for axis in axes}
        dims = self.placement.typed.facts[operand].dims
        factors = [ordered(factors_in(axes_of_dims([term]) & axes, cuts)) for term in dims]
        return [(i, layout_of(dims[i], cuts), over) for i, over in enumerate(factors) if over]

    def deferred(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        dims = self.cut_dims(operand, axes)

        def defer(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            def make(local: torch.Tensor) -> torch.Tensor:
                for dim, layout, over in dims:
                    local = collectives.gather(local, ranks, over, dim, layout)
                return local

            # A compiled graph knows no lazy values.
            return make(value) if torch.compiler.is_dynamo_compiling() else Deferred.of(value, make)

        over = ordered(factors_in(axes, self.placement.flow.cuts))
        return self.make((value, "deferred"), value, defer, Inserted("all_gather", "deferred", "activation", over))

    def kept(self, value: torch.fx.Node, operand: torch.fx.Node, axes: frozenset[Axis]) -> torch.fx.Node:
        ((dim, layout, over),) = self.cut_dims(operand, axes)

        def keep(value: torch.Tensor, ranks: Any) -> Any:
            if isinstance(layout, Leaf) and dim == value.dim() - 1:
                return _logits(value, Head(ranks, layout, kept=True))
            return collectives.keep_cut(value, ranks, over, dim, layout)

        over = ordered(factors_in(axes, self.placement.flow.cuts))
        return self.make((value, "kept"), value, keep, Inserted("keep", "forward", "activation", over))

    def gather_dim(
        self, value: torch.fx.Node, dim: int, layout: Layout, over: Factors, summed: Factors = ()
    ) -> torch.fx.Node:
        def gather(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.gather(value, ranks, over, dim, layout, summed)

        inserted, joined = self._gathering(over)
        return self.make((value, dim), value, gather, inserted, joined=joined)

    def sum_part(self, node: torch.fx.Node, over: frozenset[Any], dim: int, positions: tuple[int, ...]) -> None:
        factors, where = ordered(over), torch.tensor(positions)

        def enter_part(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.enter_part(value, ranks, factors, dim, where)

        users = [
            user for user in node.users if "collective" not in user.meta or user.meta["collective"].of != "parameter"
        ]
        made = self.make((node, over, dim), node, enter_part, Inserted("all_reduce", "backward", "parameter", factors))
        for user in users:
            user.replace_input_with(node, made)


def _logits(local: torch.Tensor, head: Head) -> Any:
    """A slice as the cut logits that it is a part of, in a form that dynamo can follow where it traces."""
    return TracedLogits(local, head) if torch.compiler.is_dynamo_compiling() else CutLogits.of(local, head)
