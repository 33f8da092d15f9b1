"""Pass: replace global sizes in arguments by local ones, all read off the terms.

Legal because a view, split or slice of a local value along the same term selects the same elements as the global one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch

from ..axes.annotation import annotation
from ..axes.call import is_tensor, named_arguments
from ..axes.facts import Local
from ..axes.layout import Layout, is_padded, layout_of
from ..axes.term import Term
from ..placement.place import Placement
from ..placement.placed import placed_as, say
from .local_parts import filled, local_offset, static_size

aten = torch.ops.aten
_END = 2**63 - 1


def localise(placement: Placement) -> None:
    """Rewrite the arguments of every node that handles cut values."""
    _Localiser(placement).run()


class _Localiser:
    def __init__(self, placement: Placement) -> None:
        self.typed, self.flow = placement.typed, placement.flow
        self.graph = placement.typed.graph

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op != "call_function":
                continue
            if node.target is aten.sym_size.int:
                self._sym_size(node)
            elif node in self.typed.facts:
                if (local := self.typed.facts[node].local) != "":
                    _ACTIONS[local](self, node)
                self.fill_paddings(node)

    def layout(self, term: Term, node: torch.fx.Node) -> Layout:
        """The layout of one dim of a value, cut along what the value holds."""
        return layout_of(term, {axis: self.flow.cuts[axis] for axis in self.flow.held[node]})

    def argument(self, node: torch.fx.Node, name: str) -> Any:
        return named_arguments(node)[name]

    def replace(self, node: torch.fx.Node, name: str, value: Any) -> None:
        """Set one argument by its schema name."""
        for i, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
            if argument.name == name and i < len(node.args):
                node.update_arg(i, value)
                return
        node.update_kwarg(name, value)

    def _sym_size(self, node: torch.fx.Node) -> None:
        """A size read off a local value stands for the global one."""
        source, dim = node.args
        while (
            isinstance(source, torch.fx.Node)
            and placed_as(source).collective is not None
            and source not in self.typed.facts
        ):
            source = source.args[0]
        if source not in self.typed.facts or not isinstance(source, torch.fx.Node):
            return
        layout = self.layout(self.typed.facts[source].dims[dim], source)  # type: ignore[index]
        local, whole = static_size(layout)
        if local != whole:
            users = list(node.users)
            with self.graph.inserting_after(node):
                parts = self.graph.call_function(operator.floordiv, (node, local))
            with self.graph.inserting_after(parts):
                size = self.graph.call_function(operator.mul, (parts, whole))
            for user in users:
                user.replace_input_with(node, size)

    def sizes(self, node: torch.fx.Node) -> None:
        """view, expand, zeros, ...: a list of the result's sizes."""
        name = self.typed.facts[node].argument
        if name not in named_arguments(node):  # a view of other numbers in the same places
            return
        wanted = list(self.argument(node, name))
        if len(wanted) == 1 and isinstance(wanted[0], (list, tuple)):
            wanted = list(wanted[0])
        for i, term in enumerate(self.typed.facts[node].dims):
            layout = self.layout(term, node)
            local, whole = static_size(layout)
            if local != whole and wanted[i] != -1:
                wanted[i] = self._scaled(node, wanted[i], local, whole)
        self.replace(node, name, wanted)

    def _scaled(self, node: torch.fx.Node, size: Any, local: int, whole: int) -> Any:
        if isinstance(size, int):
            return size // whole * local
        with self.graph.inserting_before(node):
            parts = self.graph.call_function(operator.floordiv, (size, whole))
            return self.graph.call_function(operator.mul, (parts, local))

    def unflattened(self, node: torch.fx.Node) -> None:
        dim = self.argument(node, "dim") % self.flow_rank(self._origin(self.argument(node, "self")))
        wanted = list(self.argument(node, "sizes"))
        for i, term in enumerate(self.typed.facts[node].dims[dim : dim + len(wanted)]):
            local, whole = static_size(self.layout(term, node))
            if local != whole and wanted[i] != -1:
                wanted[i] = self._scaled(node, wanted[i], local, whole)
        self.replace(node, "sizes", wanted)

    def flow_rank(self, node: torch.fx.Node) -> int:
        return len(self.typed.facts[node].dims)

    def split(self, node: torch.fx.Node) -> None:
        """split, chunk: becomes a split into the parts' local sizes."""
        source = self.argument(node, "self")
        dim = self.argument(node, "dim") % self.flow_rank(self._origin(source))
        parts = [self.layout(dims[dim], node) for dims in self.typed.facts[node].outputs]
        if all(part.local_size == part.size for part in parts):
            return
        node.target = aten.split_with_sizes.default
        node.args, node.kwargs = (source, [part.local_size for part in parts], dim), {}

    def _origin(self, node: torch.fx.Node) -> torch.fx.Node:
        """The typed value that an inserted collective was made from."""
        while node not in self.typed.facts:
            node = node.args[0]  # type: ignore[assignment]
        return node

    def slice(self, node: torch.fx.Node) -> None:
        source = self._origin(self.argument(node, "self"))
        dims = self.typed.facts[source].dims
        dim = self.argument(node, "dim") % len(dims)
        cuts = {axis: self.flow.cuts[axis] for axis in self.flow.held[node] | self.flow.held[source]}
        whole, part = layout_of(dims[dim], cuts), self._sliced(node, dim, cuts)
        if whole.local_size == whole.size:
            return
        start, step = self.argument(node, "start") or 0, self.argument(node, "step")
        if step != 1:
            self.replace(node, "end", _END)
            return
        start = min(start, whole.size) if start >= 0 else max(start + whole.size, 0)
        first = local_offset(whole, start)
        self.replace(node, "start", first)
        self.replace(node, "end", first + part.local_size)

    def _sliced(self, node: torch.fx.Node, dim: int, cuts: Mapping[Any, Any]) -> Layout:
        """The layout of the part a slice takes or a slice_scatter writes."""
        part = node
        if node.target is aten.slice_scatter.default:
            part = self._origin(self.argument(node, "src"))
        return layout_of(self.typed.facts[part].dims[dim], cuts)

    def mean(self, node: torch.fx.Node) -> None:
        """A mean over a slice, padding not counted: of how many numbers a rank has its part is known where how many there are
        in all (rows of a batch) is not."""
        fact = self.typed.facts[node]
        source = fact.operands[0]
        held = self.flow.held[source]
        layouts = [layout_of(term, {axis: self.flow.cuts[axis] for axis in held}) for term in fact.contracts]
        part = math.prod(Fraction(layout.local_size, layout.size) for layout in layouts)
        if part == 1:
            return
        users = list(node.users)
        with self.graph.inserting_after(node):
            scaled = self.graph.call_function(aten.mul.Tensor, (node, float(part)))
        why = "a mean over a slice counts as much as the slice does in the whole"
        scaled.meta = dict(node.meta)
        say(scaled, fact=None, made=why)
        for user in users:
            user.replace_input_with(node, scaled)

    def squeeze(self, node: torch.fx.Node) -> None:
        """The dims of size one are those of the whole value: a slice may have others."""
        if not self.flow.held[node]:
            return
        source = self._origin(self.argument(node, "self"))
        dims = self.typed.facts[source].dims
        asked = named_arguments(node).get("dim", range(len(dims)))
        asked = [d % len(dims) for d in ([asked] if isinstance(asked, int) else asked)]
        node.target = aten.squeeze.dims
        node.args, node.kwargs = (node.args[0], [d for d in asked if dims[d].size == 1]), {}

    def repeat(self, node: torch.fx.Node) -> None:
        """repeat_interleave: the copies this rank makes."""
        fact = self.typed.facts[node]
        if not fact.creates:
            return
        copies = self.layout(fact.creates[0], node)
        if copies.local_size != copies.size:
            self.replace(node, "repeats", copies.local_size)
        if self.flow.held[node] and self.argument(node, "output_size") is not None:
            self.replace(node, "output_size", None)

    def repeats(self, node: torch.fx.Node) -> None:
        """repeat, tile: a list of the copies along every dim; tile may leave out leading ones."""
        name = self.typed.facts[node].argument
        copies = [self.layout(term, node) for term in self.typed.facts[node].creates]
        wanted = [1] * len(copies) + list(self.argument(node, name))
        pairs = zip(wanted[-len(copies) :], copies, strict=True)
        self.replace(node, name, [w if c.local_size == c.size else c.local_size for w, c in pairs])

    def count(self, node: torch.fx.Node) -> None:
        """An argument that says how many there are of something, such as the groups of a convolution."""
        fact = self.typed.facts[node]
        if fact.counts is not None:
            counted = self.layout(fact.counts, node)
            if counted.local_size != counted.size:
                self.replace(node, fact.argument, counted.local_size)

    def fill_paddings(self, node: torch.fx.Node) -> None:
        """Where a zero would give no finite number, the padding of an operand becomes one that does, before its use."""
        fact, cuts = self.typed.facts[node], self.flow.cuts
        for operand in {fact.operands[position] for position in fact.nonzero} - set(annotation(node).writes or ()):
            axes = self.flow.held[operand] | self.flow.use(node, operand).take
            layouts = [layout_of(term, {axis: cuts[axis] for axis in axes}) for term in self.typed.facts[operand].dims]
            if any(map(is_padded, layouts)):
                for value in filter(is_tensor, node.all_input_nodes):
                    if self._origin(value) is operand:
                        self._fill_padding(node, value, layouts)

    def _fill_padding(self, node: torch.fx.Node, value: torch.fx.Node, layouts: Sequence[Layout]) -> None:
        def fill_padding(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            for dim, layout in enumerate(layouts):
                value = filled(value, dim, layout, ranks.rank)
            return value

        ranks = next(n for n in self.graph.nodes if n.op == "placeholder" and n.target == "ranks")
        with self.graph.inserting_before(node):
            made = self.graph.call_function(fill_padding, (value, ranks))
        made.meta["val"] = value.meta["val"]
        say(made, made="padding is filled in, since a zero would give no finite number")
        node.replace_input_with(value, made)


# One function a kind of argument; which operator has which kind is in its record (`axes/operators`).
_ACTIONS: Mapping[Local, Callable[[_Localiser, torch.fx.Node], None]] = {
    "sizes": _Localiser.sizes,
    "unflatten": _Localiser.unflattened,
    "split": _Localiser.split,
    "slice": _Localiser.slice,
    "mean": _Localiser.mean,
    "squeeze": _Localiser.squeeze,
    "repeat": _Localiser.repeat,
    "repeats": _Localiser.repeats,
    "count": _Localiser.count,
}
