"""Differentiable collectives: each is what its name says forward, and its conjugate backward.

Backward they are collectives themselves, whose conjugates are the ones of forward: so gradients of gradients are right, too.
A gradient of None stays one, on all ranks alike: nothing is sent for it, and no parameter gets zeros where a dense one gets none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...axes.layout import Factors, Layout, peers
from ...errors import UsageError
from ...outside.own import FUNCTIONS
from ..groups.ranks import Ranks
from .slices import count_once, join, take

MSG_AGAIN = "{what} has no second derivatives (create_graph=True); take them of the dense model, or plan so that this is not cut"


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors, of):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.factors, ctx.of = ranks, factors, of
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None, None
        gradient = as_known_to_graphs(gradient)
        return reduce(gradient, ctx.ranks, ctx.factors, "backward", ctx.of), None, None, None


class _EnterPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors, dim, positions):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.factors, ctx.dim, ctx.positions = ranks, factors, dim, positions
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None, None, None
        gradient = as_known_to_graphs(gradient)
        positions = ctx.positions.to(gradient.device)
        part = gradient.index_select(ctx.dim, positions)
        summed = reduce(part, ctx.ranks, ctx.factors, "backward", "parameter")
        return gradient.index_copy(ctx.dim, positions, summed), None, None, None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors, phase, of):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.factors = ranks, factors
        return ranks.all_reduce(value, factors, phase, of)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None, None, None
        gradient = as_known_to_graphs(gradient)
        return enter(gradient, ctx.ranks, ctx.factors), None, None, None, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.factors = ranks, factors
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None
        gradient = as_known_to_graphs(gradient)
        return once(gradient, ctx.ranks, ctx.factors), None, None


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.factors = ranks, factors
        return value.view_as(value) if ranks.coordinate(factors) == 0 else torch.zeros_like(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None
        gradient = as_known_to_graphs(gradient)
        return leave(gradient, ctx.ranks, ctx.factors), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors, dim, layout, summed):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.factors, ctx.dim, ctx.layout, ctx.summed = ranks, factors, dim, layout, summed
        return join(ranks.all_gather(value, factors, "forward"), dim, layout, factors, ranks.rank)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None, None, None, None
        gradient = as_known_to_graphs(gradient)

        def part(rank: int) -> torch.Tensor:
            return own_slice(gradient, ctx.dim, ctx.layout, rank)

        if is_recorded(gradient):
            gradient = enter(reduce(gradient, ctx.ranks, ctx.summed, "backward"), ctx.ranks, ctx.factors)
            return part(ctx.ranks.rank), None, None, None, None, None
        if ctx.summed == ctx.factors:
            parts = [part(rank) for rank in peers(ctx.ranks.rank, ctx.factors)]
            return ctx.ranks.reduce_scatter(parts, ctx.factors, "backward"), None, None, None, None, None
        if ctx.summed:
            gradient = ctx.ranks.all_reduce(gradient, ctx.summed, "backward")
        return part(ctx.ranks.rank), None, None, None, None, None


def is_recorded(value: torch.Tensor) -> bool:
    """Returns if what is computed from a value has a history."""
    return value.requires_grad and torch.is_grad_enabled()


def refuse_again(gradient: torch.Tensor, what: str) -> None:
    """Raises UsageError where a gradient is to have a gradient itself, and nothing knows how."""
    if is_recorded(gradient):
        raise UsageError(MSG_AGAIN.format(what=what))


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _once_only(gradient: torch.Tensor) -> torch.Tensor:
    # Dynamo has turned the recording of gradients off, and calls this with what has only shapes.
    if gradient.requires_grad and type(gradient) is torch.Tensor:
        raise UsageError(MSG_AGAIN.format(what="a compiled block"))
    return gradient


def as_known_to_graphs(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient that a backward is given. In a graph that dynamo makes it is looked at when the graph runs: dynamo takes every
    backward for one that has no derivative."""
    return _once_only(gradient) if torch.compiler.is_dynamo_compiling() else gradient


def enter(value: torch.Tensor, ranks: Ranks, factors: Factors, of: str = "activation") -> torch.Tensor:
    """Identity forward; backward, the gradient is summed over the ranks along some factors (Megatron's f)."""
    if not is_recorded(value):
        return value
    return _Enter.apply(value, ranks, factors, of)


def enter_part(value: torch.Tensor, ranks: Ranks, factors: Factors, dim: int, positions: torch.Tensor) -> torch.Tensor:
    """Like enter for a parameter, at some positions of one dim only."""
    if not is_recorded(value):
        return value
    return _EnterPart.apply(value, ranks, factors, dim, positions)


def reduce(
    value: torch.Tensor, ranks: Ranks, factors: Factors, phase: str = "forward", of: str = "activation"
) -> torch.Tensor:
    """The sum over the ranks along some factors forward; identity backward (Megatron's g)."""
    if not is_recorded(value):
        return ranks.all_reduce(value, factors, phase, of)
    return _Reduce.apply(value, ranks, factors, phase, of)


def leave(value: torch.Tensor, ranks: Ranks, factors: Factors) -> torch.Tensor:
    """Identity forward; backward, the gradient counts on the first rank along some factors only."""
    if not is_recorded(value):
        return value
    return _Leave.apply(value, ranks, factors)


def once(value: torch.Tensor, ranks: Ranks, factors: Factors) -> torch.Tensor:
    """A whole value as a summand of a partial sum: on the first rank along some factors, zero on the others. Identity
    backward, since every rank has all of the sum's gradient."""
    return _Once.apply(value, ranks, factors)


def gather(
    value: torch.Tensor,
    ranks: Ranks,
    factors: Factors,
    dim: int,
    layout: Layout,
    summed: Factors = (),
    of: str = "activation",
) -> torch.Tensor:
    """The whole value along one dim from every rank's slice; backward, this rank's slice of the gradient.

    Over the factors in `summed` every rank has only its part of the gradient's sum, and the slice is of the sum.
    """
    if not is_recorded(value):
        return join(ranks.all_gather(value, factors, "forward", of), dim, layout, factors, ranks.rank)
    return _Gather.apply(value, ranks, factors, dim, layout, summed)


def own_slice(gradient: torch.Tensor, dim: int, layout: Layout, rank: int) -> torch.Tensor:
    """A rank's slice along one dim of the gradient of a gathered value, of which every element counts once over all ranks."""
    layouts: list[Layout | None] = [None] * gradient.dim()
    layouts[dim] = layout
    return count_once(take(gradient, layouts, rank), dim, layout, rank)


def keep_cut(value: torch.Tensor, ranks: Ranks, factors: Factors, dim: int, layout: Layout) -> torch.Tensor:
    """A slice as the distributed tensor (`DTensor`) it is a part of, without its padding; nothing is sent.

    The dim is one axis, cut over all ranks of the group in their order.
    """
    present = max(0, min(layout.local_size, layout.size - ranks.coordinate(factors) * layout.local_size))
    return ranks.as_distributed(value.narrow(dim, 0, present), dim, layout.size)


def slice_to_rank(value: torch.Tensor, ranks: Ranks, layouts: Sequence[Layout | None]) -> torch.Tensor:
    """This rank's part of a whole value."""
    return take(value, layouts, ranks.rank)


def lookup(
    weight: torch.Tensor, indices: torch.Tensor, ranks: Ranks, layout: Layout, padding_row: int = -1
) -> torch.Tensor:
    """Rows of a table of which this rank holds some; rows it does not hold are zero, so the sum over ranks is whole.

    The rows are consecutive: the layout is a single axis. `padding_row` gets no gradient, as in `F.embedding`.
    """
    rows = layout.local_size
    first = ranks.coordinate(layout.cut.over) * rows  # type: ignore[union-attr]
    local = indices - first
    held = local.clamp(0, rows - 1)
    silent = padding_row - first if padding_row >= first and padding_row < first + rows else None
    found = FUNCTIONS.embedding(weight, held, -1 if silent is None else silent)
    return found.masked_fill_((held != local).unsqueeze(-1), 0)
