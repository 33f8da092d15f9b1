"""Pass: operators are called through torch's own bindings, in the code that runs.

Calling an overload of an operator from Python costs nearly twice what the binding of the same operator does. Legal because
a binding in this table takes the overload's arguments as they stand, and finds the same overload by them. A view becomes a
reshape, which is one wherever there is one: a kernel may lay out the result of fewer heads in an order that has none. Where
somebody writes into the memory it stays a view. A parameter's `.data` is read as that: autograd hears of no write there.
Layers run their `local_forward`: what hooks do is part of the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ..axes.annotation import annotation
from ..outside.own import FUNCTIONS, NETWORKS
from ..runtime.layers.parallel import LAYER

aten = torch.ops.aten


class Own:
    """Stands for a function of torch's own in a graph: its code names the function itself, and not where one finds it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.__name__, self.__module__ = function, function.__name__, "pytorch"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


BINDINGS: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: FUNCTIONS.add,
    aten.sub.Tensor: FUNCTIONS.sub,
    aten.mul.Tensor: FUNCTIONS.mul,
    aten.div.Tensor: FUNCTIONS.div,
    aten.neg.default: FUNCTIONS.neg,
    aten.pow.Tensor_Scalar: FUNCTIONS.pow,
    aten.rsqrt.default: FUNCTIONS.rsqrt,
    aten.mean.dim: FUNCTIONS.mean,
    aten.sum.dim_IntList: FUNCTIONS.sum,
    aten.cat.default: FUNCTIONS.cat,
    aten.transpose.int: FUNCTIONS.transpose,
    aten.permute.default: FUNCTIONS.permute,
    aten.unsqueeze.default: FUNCTIONS.unsqueeze,
    aten.view.default: torch.Tensor.view,
    aten.reshape.default: FUNCTIONS.reshape,
    aten.expand.default: torch.Tensor.expand,
    aten.contiguous.default: torch.Tensor.contiguous,
    aten.sym_size.int: torch.Tensor.size,
    aten.matmul.default: FUNCTIONS.matmul,
    aten.linear.default: NETWORKS.linear,
    aten.addmm.default: FUNCTIONS.addmm,
    aten.tanh.default: FUNCTIONS.tanh,
    aten.sigmoid.default: FUNCTIONS.sigmoid,
    aten.relu.default: FUNCTIONS.relu,
    aten.silu.default: NETWORKS.silu,
    aten.gelu.default: NETWORKS.gelu,
    aten.scaled_dot_product_attention.default: NETWORKS.scaled_dot_product_attention,
}
OWN = {overload: Own(binding) for overload, binding in BINDINGS.items()}


def data_of(parameter: torch.Tensor) -> torch.Tensor:
    """What is written there is hidden from autograd, as in the model."""
    return parameter.data


def directly(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A copy of a graph for the code: the same operators, called the cheapest way."""
    made, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    made.output(made.graph_copy(graph, copies))
    written = {copies[shared] for node in graph.nodes for shared in (annotation(node).writes or ()) if shared in copies}
    for node in made.nodes:
        if node.target is aten.view.default and node not in written:
            node.target = OWN[aten.reshape.default]
        elif node.target is aten.slice.Tensor and len(node.args) > 2 and not node.kwargs:
            _index(node)
        elif annotation(node).data:
            node.target = data_of
        elif node.op == "call_function":
            node.target = OWN.get(node.target, node.target)
        elif node.op == "call_module":
            _call_part(made, node)
    return made


def _index(node: Any) -> None:
    """A slice of the last dim as an index. Of another dim that takes as long."""
    value, dim, start, *rest = node.args
    rank = value.meta["val"].dim()
    if dim in (-1, rank - 1):
        node.target, node.args = operator.getitem, (value, (..., slice(start, *(rest or [None]))))


def _call_part(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    with graph.inserting_before(node):
        layer = graph.create_node("get_attr", f"{node.target}.{LAYER}")
        result = graph.call_method("local_forward", (layer, *node.args), node.kwargs)
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
