"""Opaque calls on a rank: which sizes their results have there, and what slices they are given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..axes.annotation import annotation
from ..axes.layout import Layout, layout_of
from ..axes.term import Dims
from ..capture.calls import call_opaque, read_differentiable, read_opaque
from ..placement.place import Placement


def expect_local_shapes(placement: Placement) -> None:
    """Let every opaque call expect results of this rank's sizes: its last argument has the sizes of the whole ones."""
    facts, flow = placement.typed.facts, placement.flow
    for node in [node for node in placement.typed.graph.nodes if annotation(node).opaque is not None]:
        *others, shapes = node.args
        if node in facts:
            held = [_layouts(placement, dims, flow.held[node]) for dims in facts[node].outputs]
            shapes = tuple(
                tuple(None if size is None else layout.local_size for size, layout in zip(shape, own, strict=True))
                for shape, own in zip(shapes, held, strict=True)
            )
        node.args = (*others, shapes)


def pass_gradients(graph: torch.fx.Graph) -> None:
    """Let a value that is read from an object have a gradient where the trace knows that it may: then placement sums that over
    the ranks, where it is a sum of theirs, as it does for what is given."""
    for node in graph.find_nodes(op="call_function", target=read_opaque):
        if annotation(node).gradient:
            node.target = read_differentiable


def slices_given(placement: Placement) -> Iterable[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes of what opaque objects are given on a rank, and of the whole values these are slices of."""
    facts, flow = placement.typed.facts, placement.flow
    for node in [node for node in facts if node.target is call_opaque]:
        for operand in facts[node].operands:
            axes = flow.held[operand] | flow.use(node, operand).take
            whole = tuple(map(_hint, operand.meta["val"].shape))
            layouts = _layouts(placement, facts[operand].dims, axes)
            scale = [(layout.local_size, layout.size) for layout in layouts]
            yield tuple(size * local // full for size, (local, full) in zip(whole, scale, strict=True)), whole


def _layouts(placement: Placement, dims: Dims, axes: Iterable[Any]) -> list[Layout]:
    cuts = {axis: placement.flow.cuts[axis] for axis in axes}
    return [layout_of(term, cuts) for term in dims]


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)
