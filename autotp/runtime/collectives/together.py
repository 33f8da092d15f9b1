"""Differentiable collectives of several values in one call: for each value what `collectives` does for it alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from ...axes.layout import Factors, Layout, peers
from ..groups.ranks import Ranks
from .single import enter, gather, own_slice, reduce
from .slices import join

aten = torch.ops.aten

Values: TypeAlias = tuple[torch.Tensor, ...]
# The dim along which a value is gathered, and its layout.
Place: TypeAlias = tuple[int, Layout]


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ranks, factors, phase, of, *values):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.factors = ranks, factors
        summed = _apart(ranks.all_reduce(_side_by_side(values), factors, phase, of), values)
        given = zip(summed, ctx.needs_input_grad[4:], strict=True)
        ctx.mark_non_differentiable(*[value for value, differentiable in given if not differentiable])
        return summed

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        entered = list(enter_together(_present(gradients), ctx.ranks, ctx.factors))
        return None, None, None, None, *_in_place(entered, gradients)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ranks, factors, of, *values):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.factors, ctx.of = ranks, factors, of
        return tuple([value.view_as(value) for value in values])

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        summed = list(reduce_together(_present(gradients), ctx.ranks, ctx.factors, "backward", ctx.of))
        return None, None, None, *_in_place(summed, gradients)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ranks, factors, places, summed, *values):  # type: ignore[no-untyped-def]
        ctx.ranks, ctx.factors, ctx.places, ctx.summed = ranks, factors, places, summed
        return _gathered(ranks, factors, places, values)

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        is_again = not _no_history(gradients)
        if is_again and ctx.summed:
            gradients = reduce_together(gradients, ctx.ranks, ctx.factors, "backward")
        if is_again:
            gradients = enter_together(gradients, ctx.ranks, ctx.factors)

        def parts(rank: int) -> list[torch.Tensor]:
            of = zip(gradients, ctx.places, strict=True)
            return [own_slice(gradient, dim, layout, rank) for gradient, (dim, layout) in of]

        own: Sequence[torch.Tensor] = parts(ctx.ranks.rank)
        if ctx.summed and not is_again:
            everybody = [_side_by_side(parts(rank)) for rank in peers(ctx.ranks.rank, ctx.factors)]
            own = _apart(ctx.ranks.reduce_scatter(everybody, ctx.factors, "backward"), own)
        return None, None, None, None, *own


def reduce_together(
    values: Values, ranks: Ranks, factors: Factors, phase: str = "forward", of: str = "activation"
) -> Values:
    """The sums of some values over the ranks along some factors forward; identity backward."""
    if not values:  # nobody reads what comes of any of them
        return ()
    if not _are_alike(values):
        return tuple([reduce(value, ranks, factors, phase, of) for value in values])
    if _no_history(values):
        return _apart(ranks.all_reduce(_side_by_side(values), factors, phase, of), values)
    return _Reduce.apply(ranks, factors, phase, of, *values)


def enter_together(values: Values, ranks: Ranks, factors: Factors, of: str = "activation") -> Values:
    """Identity forward; backward, the gradients are summed over the ranks along some factors, once all are there."""
    if _no_history(values):
        return values
    wanted = [value for value in values if value.requires_grad]
    if len(wanted) == 1 or not _are_alike(wanted):
        return tuple([enter(value, ranks, factors, of) for value in values])
    entered = list(_Enter.apply(ranks, factors, of, *wanted))
    return tuple([entered.pop(0) if value.requires_grad else value for value in values])


def gather_together(
    values: Values, ranks: Ranks, factors: Factors, places: Sequence[Place], summed: bool, of: str = "activation"
) -> Values:
    """Whole values from every rank's slices; backward, this rank's slices of the gradients, of their sums with `summed`."""
    if not _are_alike(values):
        over = factors if summed else ()
        pairs = zip(values, places, strict=True)
        return tuple([gather(value, ranks, factors, *place, over, of) for value, place in pairs])
    if _no_history(values):
        return _gathered(ranks, factors, places, values, of)
    return _Gather.apply(ranks, factors, places, summed, *values)


def _present(gradients: Sequence[torch.Tensor | None]) -> Values:
    return tuple([gradient for gradient in gradients if gradient is not None])


def _in_place(made: list[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """What was made of the gradients that there are, None where there is none."""
    return [None if gradient is None else made.pop(0) for gradient in gradients]


def _no_history(values: Sequence[torch.Tensor]) -> bool:
    return not torch.is_grad_enabled() or not any(value.requires_grad for value in values)


def _are_alike(values: Sequence[torch.Tensor]) -> bool:
    """Returns if values can lie side by side: under autocast they may be of other dtypes than when they were traced."""
    return all(value.dtype == values[0].dtype for value in values)


def _side_by_side(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return aten.flatten_dense_tensors.default(values)


def _apart(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> Values:
    """The values that lie side by side, in the shapes of others."""
    if torch.compiler.is_compiling():  # which does not know the operator
        parts = flat.split([value.numel() for value in like])
        return tuple([part.view(value.shape) for part, value in zip(parts, like, strict=True)])
    return tuple(aten.unflatten_dense_tensors.default(flat, like))


def _gathered(
    ranks: Ranks, factors: Factors, places: Sequence[Place], values: Values, of: str = "activation"
) -> Values:
    of_ranks = [_apart(part, values) for part in ranks.all_gather(_side_by_side(values), factors, "forward", of)]
    return tuple(
        [join([own[i] for own in of_ranks], dim, layout, factors, ranks.rank) for i, (dim, layout) in enumerate(places)]
    )
