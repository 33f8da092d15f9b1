"""Pass: linear operators that are a module's whole work become calls of that module, now a parallel layer; lookups of
cut tables become masked ones; padding stays zero.

Legal because the layer computes the same local product; which layer it is follows from where its weight is cut. A module
that does more than that is no parallel layer, and its operators stay in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from ..axes.annotation import annotate, annotation
from ..axes.layout import Layout, is_padded, is_whole, layout_of
from ..placement.place import Placement
from ..placement.placed import placed_as, say
from ..placement.typed import is_parameter
from ..runtime.collectives import single
from ..runtime.collectives.slices import clear_padding, keep_padding_zero
from ..runtime.layers.parallel import ColumnParallelLinear, layer_of

aten = torch.ops.aten

# Whether a layer adds its bias, and whether its weight is kept as (in, out).
Work: TypeAlias = tuple[bool, bool]


def parameter_layouts(placement: Placement) -> dict[str, tuple[Layout, ...]]:
    """The layouts of every parameter that is cut, by path."""
    found = {}
    for node, fact in placement.typed.facts.items():
        if is_parameter(node):
            layouts = tuple(layout_of(term, placement.flow.cuts) for term in fact.dims)
            if not all(map(is_whole, layouts)):
                found[str(node.target)] = layouts
    return found


def parallel_layers(module: nn.Module) -> dict[str, Work]:
    """What every parallel layer of a unit computes, by path."""
    return {
        path: (isinstance(layer, ColumnParallelLinear) and getattr(part, "bias", None) is not None, layer.transposed)
        for path, part in module.named_modules()
        if (layer := layer_of(part)) is not None
    }


def call_layers(graph: torch.fx.Graph, layouts: Mapping[str, Sequence[Layout]], layers: Mapping[str, Work]) -> None:
    """Replace `linear(x, self.a.weight, self.a.bias)` by `self.a(x)` where `a` is a parallel layer that computes just that
    and its weight is used only there."""
    for node in list(graph.nodes):
        operands = _linear_operands(node)
        if operands is None:
            continue
        value, weight, bias = operands
        owner = _owner(weight, layouts)
        transposed = node.target is not aten.linear.default
        if owner is None or layers.get(owner) != (bias is not None, transposed):
            continue
        if bias is not None and not _belongs(bias, owner):
            continue
        with graph.inserting_before(node):
            call = graph.create_node("call_module", owner, (value,), {})
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)


def _linear_operands(node: torch.fx.Node) -> tuple[Any, Any, Any] | None:
    if node.target is aten.linear.default and not node.kwargs:
        return node.args[0], node.args[1], node.args[2] if len(node.args) > 2 else None
    if node.target is aten.addmm.default and not node.kwargs:
        return node.args[1], node.args[2], node.args[0]
    if node.target is aten.mm.default:
        return node.args[0], node.args[1], None
    return None


def _owner(weight: torch.fx.Node, layouts: Mapping[str, Sequence[Layout]]) -> str | None:
    path, _, name = str(weight.target).rpartition(".")
    single = weight.op == "get_attr" and len(weight.users) == 1 and weight.target in layouts
    return path if single and path and name == "weight" else None


def _belongs(bias: torch.fx.Node, owner: str) -> bool:
    return bias.op == "get_attr" and bias.target == f"{owner}.bias" and len(bias.users) == 1


def mask_lookups(graph: torch.fx.Graph, layouts: Mapping[str, Sequence[Layout]], ranks: torch.fx.Node) -> None:
    """Replace lookups in tables whose rows are cut by lookups of the rows this rank has."""
    for node in list(graph.nodes):
        if node.target is not aten.embedding.default:
            continue
        weight = node.args[0]
        while placed_as(weight).collective is not None:
            weight = weight.args[0]
        rows = layouts.get(str(weight.target), (None,))[0] if weight.op == "get_attr" else None
        if rows is None or is_whole(rows):
            continue
        padding_row = node.args[2] if len(node.args) > 2 else -1

        def lookup(
            weight: torch.Tensor, indices: torch.Tensor, ranks: Any, rows: Layout = rows, padding_row: int = padding_row
        ) -> torch.Tensor:
            return single.lookup(weight, indices, ranks, rows, padding_row)

        node.target, node.args, node.kwargs = lookup, (*node.args[:2], ranks), {}


def keep_paddings_zero(graph: torch.fx.Graph, layouts: Mapping[str, Sequence[Layout]], ranks: torch.fx.Node) -> None:
    """Every other read of a padded parameter goes through a function whose gradient is zero on the padding."""
    for node in list(graph.nodes):
        if node.op != "get_attr" or not any(map(is_padded, layouts.get(str(node.target), ()))):
            continue
        users, own = list(node.users), tuple(layouts[str(node.target)])

        def keep_zero(value: torch.Tensor, ranks: Any, own: tuple[Layout, ...] = own) -> torch.Tensor:
            return keep_padding_zero(value, own, ranks.rank)

        with graph.inserting_after(node):
            kept = graph.call_function(keep_zero, (node, ranks))
        kept.meta["val"] = node.meta["val"]
        say(kept, made="the gradient of the padding is kept zero")
        for user in users:
            user.replace_input_with(node, kept)
    for node in [n for n in graph.nodes if annotation(n).writes]:
        _zero_again(graph, node, layouts, ranks)


def _zero_again(
    graph: torch.fx.Graph, writer: torch.fx.Node, layouts: Mapping[str, Sequence[Layout]], ranks: torch.fx.Node
) -> None:
    """What a rank has written into the padding of a parameter is zero again."""
    written = next((each for each in annotation(writer).writes or () if each.op == "get_attr"), None)
    own = layouts.get(str(written.target), ()) if written is not None else ()
    if not any(map(is_padded, own)):
        return

    def zero_padding(value: torch.Tensor, ranks: Any) -> torch.Tensor:
        return clear_padding(value, own, ranks.rank)

    with graph.inserting_after(writer):
        made = graph.call_function(zero_padding, (writer, ranks))
    made.meta["val"] = writer.meta["val"]
    annotate(made, writes=annotation(writer).writes)
    say(made, made="what was written into the padding is zero again")
