"""How much a value is: its bytes, and the share of it that one rank holds."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from ..axes.layout import layout_of, parts_of
from ..axes.term import Dims
from .state import Flow
from .steps import Step
from .typed import TypedGraph


def share_of(flow: Flow, node: torch.fx.Node, dims: Dims) -> Fraction:
    """How much of one result of a node one rank holds."""
    held = {axis: flow.cuts[axis] for axis in flow.held[node]}
    layouts = [layout_of(term, held) for term in dims]
    return math.prod((Fraction(layout.local_size, layout.size) for layout in layouts if layout.size), start=Fraction(1))


def local_share(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> Fraction:
    """How much of a value one rank holds."""
    return share_of(flow, node, typed.facts[node].dims) if flow.held[node] else Fraction(1)


def step_share(typed: TypedGraph, flow: Flow, step: Step) -> Fraction:
    """How much of the value that it is about a step sends, as what it sums or as what is put together."""
    record = step.record
    if record.does in ("reduce", "enter"):
        return local_share(typed, flow, step.about)
    if record.does == "enter_part":
        ((_, layout, _),) = record.dims
        return local_share(typed, flow, step.about) * Fraction(len(record.where), layout.local_size)
    if record.does in ("gather", "logits"):
        gathered = [before.record.over for before in step.path if before.record.does in ("gather", "logits")]
        return local_share(typed, flow, step.root) * math.prod(map(parts_of, gathered))
    return Fraction(1)


def size_of(node: torch.fx.Node) -> int:
    """The bytes of a node's tensors, at the sizes they had when the graph was traced."""
    value = node.meta["val"]
    values = value if isinstance(value, (list, tuple)) else [value]
    return sum(_bytes(value) for value in values if isinstance(value, torch.Tensor))


def _bytes(value: torch.Tensor) -> int:
    # A size that only the data tells counts as one: it is the same on both sides of a comparison.
    hints = [size if isinstance(size, int) else int(size.node.hint or 1) for size in value.shape]
    return math.prod(hints) * value.element_size()
