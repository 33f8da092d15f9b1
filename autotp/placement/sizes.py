"""How much a value is: its bytes, and the share of it that one rank holds."""

from __future__ import annotations

import math

import torch

from ..axes.layout import layout_of
from .state import Flow
from .typed import TypedGraph


def local_share(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> float:
    """How much of a value one rank holds."""
    if node not in flow.shares:
        held = {axis: flow.cuts[axis] for axis in flow.held[node]}
        layouts = [layout_of(term, held) for term in typed.facts[node].dims]
        flow.shares[node] = math.prod(layout.local_size / layout.size for layout in layouts if layout.size)
    return flow.shares[node]


def size_of(node: torch.fx.Node) -> int:
    """The bytes of a node's tensors, at the sizes they had when the graph was traced."""
    value = node.meta["val"]
    values = value if isinstance(value, (list, tuple)) else [value]
    return sum(_bytes(value) for value in values if isinstance(value, torch.Tensor))


def _bytes(value: torch.Tensor) -> int:
    # A size that only the data tells counts as one: it is the same on both sides of a comparison.
    hints = [size if isinstance(size, int) else int(size.node.hint or 1) for size in value.shape]
    return math.prod(hints) * value.element_size()
