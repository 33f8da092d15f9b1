"""Differentiable collectives: each is what its name says forward, and its conjugate backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..axes.layout import Factors, Layout
from .ranks import Ranks
from .slices import join, take


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors, of):  # type: ignore[no-untyped-def]
        ctx.ranks, ctx.factors, ctx.of = ranks, factors, of
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return ctx.ranks.all_reduce(gradient, ctx.factors, "backward", ctx.of), None, None, None


class _EnterSegments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors, dim, segments):  # type: ignore[no-untyped-def]
        ctx.ranks, ctx.factors, ctx.dim, ctx.segments = ranks, factors, dim, segments
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        pieces = [gradient.narrow(ctx.dim, start, length) for start, length in ctx.segments]
        summed = ctx.ranks.all_reduce(torch.cat(pieces, ctx.dim), ctx.factors, "backward", "parameter")
        gradient, offset = gradient.clone(), 0
        for start, length in ctx.segments:
            gradient.narrow(ctx.dim, start, length).copy_(summed.narrow(ctx.dim, offset, length))
            offset += length
        return gradient, None, None, None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors):  # type: ignore[no-untyped-def]
        return ranks.all_reduce(value, factors, "forward")

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ranks, factors, dim, layout):  # type: ignore[no-untyped-def]
        ctx.rank, ctx.dim, ctx.layout = ranks.rank, dim, layout
        return join(ranks.all_gather(value, factors, "forward"), dim, layout, factors, ranks.rank)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        layouts = [None] * gradient.dim()
        layouts[ctx.dim] = ctx.layout
        return take(gradient, layouts, ctx.rank), None, None, None, None


def enter(value: torch.Tensor, ranks: Ranks, factors: Factors, of: str = "activation") -> torch.Tensor:
    """Identity forward; backward, the gradient is summed over the ranks along some factors (Megatron's f)."""
    if not (value.requires_grad and torch.is_grad_enabled()):
        return value
    return _Enter.apply(value, ranks, factors, of)  # type: ignore[no-untyped-call, no-any-return]


def enter_segments(
    value: torch.Tensor, ranks: Ranks, factors: Factors, dim: int, segments: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Like enter, for the (start, length) segments of one dim only."""
    if not (value.requires_grad and torch.is_grad_enabled()):
        return value
    return _EnterSegments.apply(value, ranks, factors, dim, segments)  # type: ignore[no-untyped-call, no-any-return]


def reduce(value: torch.Tensor, ranks: Ranks, factors: Factors) -> torch.Tensor:
    """The sum over the ranks along some factors forward; identity backward (Megatron's g)."""
    return _Reduce.apply(value, ranks, factors)  # type: ignore[no-untyped-call, no-any-return]


def gather(value: torch.Tensor, ranks: Ranks, factors: Factors, dim: int, layout: Layout) -> torch.Tensor:
    """The whole value along one dim from every rank's slice; backward, this rank's slice of the gradient."""
    return _Gather.apply(value, ranks, factors, dim, layout)  # type: ignore[no-untyped-call, no-any-return]


def slice_to_rank(value: torch.Tensor, ranks: Ranks, layouts: Sequence[Layout | None]) -> torch.Tensor:
    """This rank's part of a whole value."""
    return take(value, layouts, ranks.rank)


def lookup(weight: torch.Tensor, indices: torch.Tensor, ranks: Ranks, layout: Layout) -> torch.Tensor:
    """Rows of a table of which this rank holds some; rows it does not hold are zero, so the sum over ranks is whole.

    The rows are consecutive: the layout is a single axis.
    """
    rows = layout.local_size
    first = ranks.coordinate(layout.cut.over) * rows  # type: ignore[union-attr]
    local = indices - first
    here = (local >= 0) & (local < rows)
    found = torch.nn.functional.embedding(local.clamp(0, rows - 1), weight)
    return found * here.unsqueeze(-1).to(found.dtype)
