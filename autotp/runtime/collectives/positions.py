"""Collectives of positions of a sequence: every rank holds some of them, in order, as evenly as they divide."""

from __future__ import annotations

from typing import Any

import torch

from ...axes.layout import Factor, Factors, parts_of
from ...outside.own import FUNCTIONS
from ..groups.ranks import Ranks
from .again import note_gathered
from .single import is_recorded, reduce


def shares(length: int, size: int) -> list[int]:
    """How many positions each rank holds: no two differ by more than one, and the first ranks hold more."""
    each, more = divmod(length, size)
    return [each + (rank < more) for rank in range(size)]


def _group(ranks: Ranks) -> Factors:
    return (Factor(ranks.size, 1),)


def own_positions(whole: torch.Tensor, ranks: Ranks, dim: int) -> torch.Tensor:
    """This rank's positions of a whole value, in memory of their own: a view would keep the whole."""
    own = whole.split(shares(whole.shape[dim], ranks.size), dim)[ranks.rank]
    return own.clone(memory_format=torch.contiguous_format)


def _filled(part: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """A part with zeros behind it, since a collective takes equal shapes only."""
    if part.shape[dim] == length:
        return part
    shape = list(part.shape)
    shape[dim] = length - part.shape[dim]
    return FUNCTIONS.cat([part, part.new_zeros(shape)], dim)


def gathered_positions(local: torch.Tensor, ranks: Ranks, dim: int, length: int, phase: str) -> torch.Tensor:
    held = shares(length, ranks.size)
    parts = ranks.all_gather(_filled(local, dim, held[0]), _group(ranks), phase)
    return FUNCTIONS.cat([part.narrow(dim, 0, size) for part, size in zip(parts, held, strict=True)], dim)


def _summed(whole: torch.Tensor, ranks: Ranks, dim: int, phase: str) -> torch.Tensor:
    """This rank's positions of the sum of every rank's value."""
    held = shares(whole.shape[dim], ranks.size)
    parts = [_filled(part, dim, held[0]) for part in whole.split(held, dim)]
    return ranks.reduce_scatter(parts, _group(ranks), phase).narrow(dim, 0, held[ranks.rank])


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole, ranks, dim):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.dim, ctx.length = ranks, dim, whole.shape[dim]
        return own_positions(whole, ranks, dim)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None
        if is_recorded(gradient):
            return gather_positions(gradient, ctx.ranks, ctx.dim, ctx.length), None, None
        return gathered_positions(gradient, ctx.ranks, ctx.dim, ctx.length, "backward"), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local, ranks, dim, length, summed, again):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.dim, ctx.summed = ranks, dim, summed
        whole = gathered_positions(local, ranks, dim, length, "forward")
        if again:
            local = local.detach()
            note_gathered(whole, lambda: gathered_positions(local, ranks, dim, length, "backward"))
        return whole

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None, None, None, None
        if is_recorded(gradient):
            return _positions_again(gradient, ctx), None, None, None, None, None
        if ctx.summed and parts_of(ctx.summed) == ctx.ranks.size:
            return _summed(gradient, ctx.ranks, ctx.dim, "backward"), None, None, None, None, None
        if ctx.summed:
            gradient = ctx.ranks.all_reduce(gradient, ctx.summed, "backward")
        return own_positions(gradient, ctx.ranks, ctx.dim), None, None, None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, ranks, dim):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.dim, ctx.length = ranks, dim, partial.shape[dim]
        return _summed(partial, ranks, dim, "forward")

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None
        if is_recorded(gradient):
            return gather_positions(gradient, ctx.ranks, ctx.dim, ctx.length, _group(ctx.ranks)), None, None
        return gathered_positions(gradient, ctx.ranks, ctx.dim, ctx.length, "backward"), None, None


def _positions_again(gradient: torch.Tensor, ctx: Any) -> torch.Tensor:
    """The gradient of a gather where it is to have a gradient itself."""
    if ctx.summed and parts_of(ctx.summed) == ctx.ranks.size:
        return scatter_sum(gradient, ctx.ranks, ctx.dim)
    if ctx.summed:
        gradient = reduce(gradient, ctx.ranks, ctx.summed, "backward")
    return take_positions(gradient, ctx.ranks, ctx.dim)


def take_positions(whole: torch.Tensor, ranks: Ranks, dim: int) -> torch.Tensor:
    """This rank's positions of a whole value; backward, the gradients of all positions are gathered."""
    return _Take.apply(whole, ranks, dim)


def gather_positions(
    local: torch.Tensor, ranks: Ranks, dim: int, length: int, summed: Factors = (), *, again: bool = False
) -> torch.Tensor:
    """The whole value from every rank's positions; backward, this rank's positions of the gradient.

    Over the mesh factors in `summed` every rank has only its part of the gradient's sum: over all ranks it is reduced and
    scattered, over some of them reduced and then sliced. With `again` the backward may gather it again in place of keeping it.
    """
    return _Gather.apply(local, ranks, dim, length, summed, again)


def scatter_sum(partial: torch.Tensor, ranks: Ranks, dim: int) -> torch.Tensor:
    """This rank's positions of a sum over all ranks; backward, the gradients of all positions are gathered."""
    return _ReduceScatter.apply(partial, ranks, dim)
