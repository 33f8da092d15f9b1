"""Pass: what a unit leaves in an object stands for whole values, since the Python between units may read it there.

Legal because what stands for a whole is, to a unit that reads it, this rank's part of the same value. What an object's own Python
has made of it is whole, and a unit takes its part of that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ..axes.annotation import SETS, annotation
from ..axes.layout import local_indices, ordered
from ..capture.calls import Shapes, call_opaque, read_differentiable, read_opaque
from ..capture.opaque import Path
from ..errors import TraceError
from ..placement.place import Placement
from ..placement.placed import placed_as, say
from ..placement.transition import CutDim, Transition, cut_dims
from ..runtime.groups.ranks import Ranks
from ..runtime.results.deferred import Deferred
from ..runtime.results.tensor import CutResult, part_of
from ..runtime.results.whole import is_of_parameter, taken_whole
from .functions import function_of
from .through import own_part

_READS = (read_opaque, read_differentiable)
MSG_WRITES = "it writes into a cut parameter that an object in the call holds"
MSG_WRITTEN = "it writes into a value in a {kind}, of which this rank has its part"
MSG_OTHERWISE = "a value in a {kind} is cut otherwise than a block reads it, and needs a gradient"


def note_cuts(placement: Placement) -> None:
    """Say of every node that puts values into an object, or reads some there, how each of them is cut."""
    facts, flow = placement.typed.facts, placement.flow

    def given(node: torch.fx.Node, operand: torch.fx.Node) -> tuple[CutDim, ...]:
        if operand not in facts:
            return ()
        return tuple(cut_dims(facts[operand].dims, flow.held[operand] | flow.use(node, operand).take, flow.cuts))

    written = {each for node in facts for each in annotation(node).writes or ()}
    for node in facts:
        say(node, written=_is_opaque(node) and not written.isdisjoint((node, *node.users)))
        if annotation(node).opaque in SETS:
            say(node, cuts=tuple(given(node, operand) for operand in node.all_input_nodes))
        elif node.target in _READS:
            cuts = tuple(tuple(cut_dims(dims, flow.held[node], flow.cuts)) for dims in facts[node].outputs)
            say(node, cuts=cuts)


def put_wholes(graph: torch.fx.Graph) -> None:
    """Let objects keep what stands for whole values, and read parts of what they keep."""
    ranks = next(node for node in graph.find_nodes(op="placeholder") if node.target == "ranks")
    for node in list(graph.nodes):
        cuts = placed_as(node).cuts
        if node.target is call_opaque and any(cuts):
            for operand, dims in zip(list(node.all_input_nodes), cuts, strict=True):
                if dims:
                    node.replace_input_with(operand, _standing_for(operand, node, dims, ranks))
        if node.target is call_opaque:
            node.target = _calling(placed_as(node).written)
        elif node.target in _READS and cuts:
            node.target, node.args = _reading(node.target, cuts, placed_as(node).written), (*node.args, ranks)


def _is_opaque(node: torch.fx.Node) -> bool:
    return node.target is call_opaque or node.target in _READS


def _calling(written: bool) -> Callable[..., list[torch.Tensor]]:
    """The call of an object's method, which may give what stands for a whole."""

    def call(
        handle: Any, path: Path, args: Collection[Any], kwargs: Mapping[str, Any], shapes: Shapes
    ) -> list[torch.Tensor]:
        kind = type(handle).__name__

        def whole(value: torch.Tensor) -> torch.Tensor:
            if written and (is_of_parameter(value) or isinstance(value, CutResult)):
                raise TraceError(MSG_WRITTEN.format(kind=kind))
            return taken_whole(value, f"what a {kind} gave")

        return call_opaque(handle, path, args, kwargs, shapes, lambda values: list(map(whole, values)))

    return call


def _standing_for(
    value: torch.fx.Node, reader: torch.fx.Node, dims: Sequence[CutDim], ranks: torch.fx.Node
) -> torch.fx.Node:
    """What stands for a whole, by way of which the unit goes on, as it does by way of a result: hooks on it are the value's."""
    if value.target is own_part:
        result = value.args[0]
        assert isinstance(result, torch.fx.Node)
        return result
    others = [user for user in value.users if user is not reader]
    with value.graph.inserting_after(value):
        stand = value.graph.call_function(_standing(dims), (value, ranks))
    with value.graph.inserting_after(stand):
        part = value.graph.call_function(own_part, (stand, value))
    part.meta = dict(value.meta)
    for user in others:
        user.replace_input_with(value, part)
    return stand


def _standing(dims: Sequence[CutDim]) -> Callable[..., torch.Tensor]:
    over = ordered(frozenset(factor for _, _, over in dims for factor in over))
    defer = function_of(Transition("defer", over, dims=tuple(dims)))

    def stand(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        if not torch.compiler.is_dynamo_compiling():
            for _ in dims:  # of which each may be gathered, by whoever reads it
                ranks.note_computed()
        return defer(value, ranks)

    return stand


def _reading(
    target: Callable[..., list[torch.Tensor]], cuts: Sequence[Sequence[CutDim]], written: bool
) -> Callable[..., list[torch.Tensor]]:
    def read(handle: Any, path: Path, shapes: Shapes, ranks: Ranks) -> list[torch.Tensor]:
        def part(value: torch.Tensor, dims: Sequence[CutDim]) -> torch.Tensor:
            return _part(value, Deferred(ranks, tuple(dims)), type(handle).__name__, written)

        return target(handle, path, shapes, lambda values: list(map(part, values, cuts)))

    return read


def _part(value: torch.Tensor, wanted: Deferred, kind: str, written: bool = False) -> torch.Tensor:
    """This rank's part of a value that an object keeps as a part, whole, or as what stands for a whole.

    Raises TraceError where the gradient, which is a part, would be none for whoever has made the value, and where what the unit
    writes would go into a copy.
    """
    is_alike = (
        isinstance(value, CutResult)
        and isinstance(value.policy, Deferred)
        and _are_alike(tuple(value.policy.cuts), tuple(wanted.cuts), wanted.ranks.size)
    )
    if isinstance(value, CutResult) and is_alike and not value.is_settled:
        return part_of(value)
    if written and is_of_parameter(value):
        raise TraceError(MSG_WRITTEN.format(kind=kind))
    value = taken_whole(value, f"what a {kind} holds")
    if not wanted.cuts or any(value.shape[dim] != layout.size for dim, layout, _ in wanted.cuts):
        return value
    if written:
        raise TraceError(MSG_WRITTEN.format(kind=kind))
    if value.requires_grad and torch.is_grad_enabled() and not is_alike:
        raise TraceError(MSG_OTHERWISE.format(kind=kind))
    return wanted.own(value)


@functools.lru_cache(1024)
def _are_alike(one: tuple[CutDim, ...], other: tuple[CutDim, ...], ranks: int) -> bool:
    """Returns if every rank has the same elements of a value that is cut in one way and in the other."""
    if one == other or [dim for dim, *_ in one] != [dim for dim, *_ in other]:
        return one == other
    return all(
        local_indices(layout, rank) == local_indices(its, rank)
        for (_, layout, _), (_, its, _) in zip(one, other, strict=True)
        for rank in range(ranks)
    )
