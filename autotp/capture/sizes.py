"""Numbers that a traced graph reads off a value and that are made of its sizes: written as these, which stand for those of the
whole where the value is cut."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import sympy
import torch

from ..errors import TraceError

aten = torch.ops.aten


def count_to_sizes(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Replace a number of elements by the product of the sizes."""
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    known = math.prod(size for size in source.meta["val"].shape if isinstance(size, int))
    _replace(graph, node, source, range(source.meta["val"].dim()), known)


def stride_to_sizes(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Replace a stride by the product of the sizes of the dims within it. That of a part of a value is the value's own.

    Raises TraceError for a stride that is none.
    """
    source, dim = node.args
    assert isinstance(source, torch.fx.Node) and isinstance(dim, int)
    value, stride = source.meta["val"], _expression(node.meta["val"])
    within = [i for i, other in enumerate(value.stride()) if 0 < _hint(other) < _hint(node.meta["val"])]
    rest = sympy.cancel(stride / math.prod(_expression(value.shape[i]) for i in _symbolic(value, within)))
    if rest.is_Integer:
        _replace(graph, node, source, within, int(rest))
        return
    base = source.args[0] if source.args else None
    viewed = base.meta.get("val") if isinstance(base, torch.fx.Node) else None
    strides = list(map(_expression, viewed.stride())) if isinstance(viewed, torch.Tensor) else []
    if stride not in strides:
        raise TraceError("it makes use of the stride of a value that lies in memory with gaps")
    node.args = (base, strides.index(stride))
    stride_to_sizes(graph, node)


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr


def _hint(size: Any) -> int:
    return int(size if isinstance(size, int) else size.node.hint)


def hints_of(tensor: torch.Tensor) -> list[int]:
    """The sizes of a tensor as numbers: those of the call that is traced or recorded."""
    return [_hint(size) for size in tensor.shape]


def _symbolic(value: torch.Tensor, dims: Iterable[int]) -> list[int]:
    return [i for i in dims if not isinstance(value.shape[i], int)]


def _replace(
    graph: torch.fx.Graph, node: torch.fx.Node, source: torch.fx.Node, dims: Iterable[int], product: int
) -> None:
    """Put the product of a number and of those of these sizes of a value that vary in the place of a node."""
    value, total = source.meta["val"], None
    with graph.inserting_before(node):
        for dim in _symbolic(value, dims):
            size = value.shape[dim]
            part = graph.call_function(aten.sym_size.int, (source, dim))
            part.meta = {"val": size}
            total = _times(graph, part, product if total is None else total, size * product)
            product = size * product
    assert total is not None
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _times(graph: torch.fx.Graph, left: torch.fx.Node, right: torch.fx.Node | int, value: object) -> torch.fx.Node:
    """A product of two sizes, of this value."""
    if right == 1:
        return left
    product = graph.call_function(operator.mul, (left, right))
    product.meta = {"val": value}
    return product
