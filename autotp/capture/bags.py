"""`embedding_bag` with a table of parameters, as the lookups and sums that it is: so its rows may be spread over ranks."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ..axes.annotation import annotation
from ..axes.call import named_arguments

aten = torch.ops.aten
BAGS = frozenset({aten.embedding_bag.default, aten.embedding_bag.padding_idx})
_SUM, _MEAN = 0, 1  # modes


def bag_to_lookups(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Replace bags that are summed or averaged: bag b of N numbers has those from offsets[b] on, up to the next bag's.

    Bags whose largest entry is taken, or that leave some rows out, or whose gradient counts rows, stay as they are.
    """
    named = named_arguments(node)
    results = [user for user in node.users if user.target is not operator.getitem or user.args[1] != 0]
    plain = not (named["scale_grad_by_freq"] or named["sparse"] or named["include_last_offset"])
    padded = named.get("padding_idx") not in (None, -1)
    table = annotation(named["weight"]).parameter
    if not (plain and table and named["mode"] in (_SUM, _MEAN)) or padded or any(user.users for user in results):
        return
    with graph.inserting_before(node):
        value = _summed(graph, named)
    for user in list(node.users):
        user.replace_all_uses_with(value)
        graph.erase_node(user)
    graph.erase_node(node)


def _summed(graph: torch.fx.Graph, named: dict[str, Any]) -> torch.fx.Node:
    def make(target: Any, *args: Any, **options: bool) -> torch.fx.Node:
        node = graph.call_function(target, args, dict(options))
        values: Any = torch.fx.node.map_arg(args, lambda arg: arg.meta["val"])
        node.meta = {"val": target(*values, **options)}
        return node

    indices, offsets, weights = named["indices"], named["offsets"], named["per_sample_weights"]
    rows = make(aten.embedding.default, named["weight"], indices)
    if weights is not None:
        rows = make(aten.mul.Tensor, rows, make(aten.unsqueeze.default, weights, 1))
    ones = make(aten.ones_like.default, indices)
    places = make(aten.sub.Tensor, make(aten.cumsum.default, ones, 0), ones)
    bags = make(aten.sub.Tensor, make(aten.bucketize.Tensor, places, offsets, right=True), 1)
    count, width = offsets.meta["val"].shape[0], rows.meta["val"].shape[1]
    size = count if isinstance(count, int) else make(aten.sym_size.int, offsets, 0)
    total = make(aten.index_add.default, make(aten.new_zeros.default, rows, [size, width]), 0, bags, rows)
    if named["mode"] == _SUM:
        return total
    each = make(aten.to.dtype, ones, rows.meta["val"].dtype)
    counts = make(aten.index_add.default, make(aten.new_zeros.default, rows, [size]), 0, bags, each)
    return make(aten.div.Tensor, total, make(aten.unsqueeze.default, make(aten.clamp_min.default, counts, 1), 1))
