"""Pass: what a unit leaves in an object stands for whole values, since the Python between units may read it there.

Legal because what stands for a whole is, to a unit that reads it, this rank's part of the same value. What an object's own Python
has made of it is whole, and a unit takes its part of that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..axes.annotation import annotation
from ..axes.layout import ordered
from ..axes.term import Dims, axes_of_dims
from ..capture.calls import Shapes, call_opaque, read_differentiable, read_opaque
from ..capture.opaque import Path
from ..errors import TraceError
from ..placement.place import Placement
from ..placement.placed import placed_as, say
from ..placement.transition import CutDim, Transition
from ..placement.typed import factors_in
from ..runtime.collectives.single import slice_to_rank
from ..runtime.groups.ranks import Ranks
from ..runtime.results.deferred import Deferred
from ..runtime.results.tensor import CutResult, closed, part_of
from .functions import function_of
from .opaque import layouts_of
from .through import own_part, written_in

_SETS = frozenset({"opaque.__setattr__", "opaque.__setitem__"})
_READS = (read_opaque, read_differentiable)
MSG_WRITTEN = "it writes into what a {kind} keeps, of which the Python between blocks has the whole"
MSG_OTHERWISE = "a value in a {kind} is cut otherwise than a block reads it, and needs a gradient"


def note_cuts(placement: Placement) -> None:
    """Say of every node that puts values into an object, or reads some there, how each of them is cut."""
    facts, flow = placement.typed.facts, placement.flow
    for node in placement.typed.graph.nodes:
        if annotation(node).opaque in _SETS and node in facts:
            given = [
                _cuts(placement, facts[operand].dims, flow.held[operand] | flow.use(node, operand).take)
                if operand in facts
                else ()
                for operand in node.all_input_nodes
            ]
            say(node, cuts=tuple(given))
        elif node.target in _READS and node in facts:
            say(node, cuts=tuple(_cuts(placement, dims, flow.held[node]) for dims in facts[node].outputs))


def _cuts(placement: Placement, dims: Dims, axes: Collection[Any]) -> tuple[CutDim, ...]:
    layouts = layouts_of(placement, dims, axes)
    over = [ordered(factors_in(axes_of_dims([term]) & frozenset(axes), placement.flow.cuts)) for term in dims]
    return tuple((i, layout, factors) for i, (layout, factors) in enumerate(zip(layouts, over, strict=True)) if factors)


def put_wholes(graph: torch.fx.Graph) -> None:
    """Let objects keep what stands for whole values, and read parts of what they keep."""
    ranks = next(node for node in graph.find_nodes(op="placeholder") if node.target == "ranks")
    written = written_in(graph)
    for node in list(graph.nodes):
        cuts = placed_as(node).cuts
        if node.target is call_opaque and any(cuts):
            for operand, dims in zip(list(node.all_input_nodes), cuts, strict=True):
                if dims:
                    stand = _standing_for(operand, node, dims, ranks, is_written=operand.name in written)
                    node.replace_input_with(operand, stand)
        elif node.target in _READS and cuts:
            node.target = _reading(node.target, cuts, any(user.name in written for user in node.users))
            node.args = (*node.args, ranks)


def _standing_for(
    value: torch.fx.Node, reader: torch.fx.Node, dims: Sequence[CutDim], ranks: torch.fx.Node, *, is_written: bool
) -> torch.fx.Node:
    """What stands for a whole, by way of which the unit goes on, as it does by way of a result: hooks on it are the value's."""
    if value.target is own_part:
        result = value.args[0]
        assert isinstance(result, torch.fx.Node)
        return result
    others = [user for user in value.users if user is not reader]
    with value.graph.inserting_after(value):
        stand = value.graph.call_function(_standing(dims), (value, ranks))
    if is_written or not value.meta["val"].is_floating_point():
        return stand
    with value.graph.inserting_after(stand):
        part = value.graph.call_function(own_part, (stand, value))
    for user in others:
        user.replace_input_with(value, part)
    part.meta = dict(value.meta)
    return stand


def _standing(dims: Sequence[CutDim]) -> Callable[..., torch.Tensor]:
    defer = function_of(
        Transition("defer", ordered(frozenset(factor for _, _, over in dims for factor in over)), dims=tuple(dims))
    )

    def stand(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        if not torch.compiler.is_dynamo_compiling():
            for _ in dims:  # of which each may be gathered, by whoever reads it
                ranks.note_computed()
        return defer(value, ranks)

    return stand


def _reading(
    target: Callable[..., list[torch.Tensor]], cuts: Sequence[Sequence[CutDim]], is_written: bool
) -> Callable[..., list[torch.Tensor]]:
    def read(handle: Any, path: Path, shapes: Shapes, ranks: Ranks) -> list[torch.Tensor]:
        reader = _Reader(type(handle).__name__, ranks, is_written)
        return target(handle, path, shapes, lambda values: list(map(reader.part, values, cuts)))

    return read


@dataclass(frozen=True)
class _Reader:
    """Takes this rank's parts of values that an object of some kind keeps; if `is_written`, to write into them."""

    kind: str
    ranks: Ranks
    is_written: bool

    def part(self, value: torch.Tensor, dims: Sequence[CutDim]) -> torch.Tensor:
        """The part of a value that is cut along some dims, and may be there whole, as one, or as what stands for a whole."""
        if not isinstance(value, CutResult):
            is_whole = bool(dims) and all(value.shape[dim] == layout.size for dim, layout, _ in dims)
            return self._own(value, dims, has_gradient=False) if is_whole else value
        if self.is_written and value.is_whole and dims:  # of a whole, the memory hears of a write
            raise TraceError(MSG_WRITTEN.format(kind=self.kind))
        is_alike = isinstance(value.policy, Deferred) and tuple(value.policy.cuts) == tuple(dims)
        if is_alike and not value.is_settled:
            return part_of(value)
        return self._own(closed(value), dims, has_gradient=is_alike)

    def _own(self, whole: torch.Tensor, dims: Sequence[CutDim], *, has_gradient: bool) -> torch.Tensor:
        """A whole, or the part of it; its gradient, which is a part, is one for whoever has made a value that is cut alike."""
        if not dims:
            return whole
        if self.is_written:
            raise TraceError(MSG_WRITTEN.format(kind=self.kind))
        if whole.requires_grad and torch.is_grad_enabled() and not has_gradient:
            raise TraceError(MSG_OTHERWISE.format(kind=self.kind))
        layouts = {dim: layout for dim, layout, _ in dims}
        return slice_to_rank(whole, self.ranks, [layouts.get(i) for i in range(whole.dim())])
