"""A value cut over the positions of a sequence: every rank holds some of them, in order, as evenly as they divide.

Blocks compute on a rank's positions and hand them on as a `CutSequence`. To everybody else that is the whole value, put
together at the first use, so the Python between blocks computes what it always did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...axes.layout import Factor, Factors, parts_of
from ..collectives.again import note_gathered
from ..collectives.single import is_recorded, reduce, refuse_again
from ..groups.ranks import Ranks

aten = torch.ops.aten
# Counted from the end, the dim that is cut: positions, each a vector.
DIM = -2


def shares(length: int, size: int) -> list[int]:
    """How many positions each rank holds: no two differ by more than one, and the first ranks hold more."""
    each, more = divmod(length, size)
    return [each + (rank < more) for rank in range(size)]


def _group(ranks: Ranks) -> Factors:
    return (Factor(ranks.size, 1),)


def _own(whole: torch.Tensor, ranks: Ranks, dim: int) -> torch.Tensor:
    """This rank's positions of a whole value, in memory of their own: a view would keep the whole."""
    own = whole.split(shares(whole.shape[dim], ranks.size), dim)[ranks.rank]
    return own.clone(memory_format=torch.contiguous_format)


def _filled(part: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """A part with zeros behind it, since a collective takes equal shapes only."""
    if part.shape[dim] == length:
        return part
    shape = list(part.shape)
    shape[dim] = length - part.shape[dim]
    return torch.cat([part, part.new_zeros(shape)], dim)


def _gathered(local: torch.Tensor, ranks: Ranks, dim: int, length: int, phase: str) -> torch.Tensor:
    held = shares(length, ranks.size)
    parts = ranks.all_gather(_filled(local, dim, held[0]), _group(ranks), phase)
    return torch.cat([part.narrow(dim, 0, size) for part, size in zip(parts, held, strict=True)], dim)


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
        return _own(whole, ranks, dim)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None
        if is_recorded(gradient):
            return gather_positions(gradient, ctx.ranks, ctx.dim, ctx.length), None, None
        return _gathered(gradient, ctx.ranks, ctx.dim, ctx.length, "backward"), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local, ranks, dim, length, summed, again):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.dim, ctx.summed = ranks, dim, summed
        whole = _gathered(local, ranks, dim, length, "forward")
        if again:
            local = local.detach()
            note_gathered(whole, lambda: _gathered(local, ranks, dim, length, "backward"))
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
        return _own(gradient, ctx.ranks, ctx.dim), None, None, None, None, None


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
        return _gathered(gradient, ctx.ranks, ctx.dim, ctx.length, "backward"), None, None


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


class CutSequence(torch.Tensor):
    """A value of which this rank holds some positions, in dim `DIM`. It has the shape of the whole.

    What is asked of it is asked of the whole, at one all-gather that all ranks reach together. Gradients are cut too.
    """

    local: torch.Tensor
    ranks: Ranks
    phase: str
    _whole: torch.Tensor | None

    @staticmethod
    def like(local: torch.Tensor, ranks: Ranks, length: int, phase: str = "forward") -> CutSequence:
        """The value without history of which a tensor holds this rank's positions, `length` in all."""
        shape = [*local.shape[:DIM], length, *local.shape[DIM + 1 :]]
        made: CutSequence = torch.Tensor._make_wrapper_subclass(
            CutSequence, shape, dtype=local.dtype, device=local.device
        )
        made.__dict__.update(local=local.detach(), ranks=ranks, phase=phase, _whole=None)
        return made

    def whole(self) -> torch.Tensor:
        """The whole value without history, gathered at the first use."""
        if self._whole is None:
            with torch.no_grad():
                self._whole = _gathered(self.local, self.ranks, self.dim() + DIM, self.shape[DIM], self.phase)
        return self._whole

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"CutSequence({tuple(self.shape)}, local {tuple(self.local.shape)}, {self.dtype})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kept = _on_positions(func, args)
        if kept is not None:
            return kept
        given = pytree.tree_map_only(CutSequence, CutSequence.whole, (args, kwargs or {}))
        result = func(*given[0], **given[1])
        for arg in args:
            if func._schema.is_mutable and isinstance(arg, CutSequence) and arg._whole is result:
                arg.local = _own(arg.whole(), arg.ranks, arg.dim() + DIM)
                return arg
        return result


def _on_positions(func: Any, args: Any) -> CutSequence | None:
    """The result of what autograd itself does with values and gradients; None for every other operator."""
    first = args[0] if args else None
    if not isinstance(first, CutSequence):
        return None
    if func in (aten.detach.default, aten.alias.default, aten.clone.default):
        return _mapped(first, first.local.clone() if func is aten.clone.default else first.local)
    if func is aten.view.default and list(args[1]) == list(first.shape):
        return _mapped(first, first.local)
    if func is aten.add.Tensor and len(args) == 2 and isinstance(args[1], CutSequence) and args[1].shape == first.shape:
        return _mapped(first, first.local + args[1].local)
    return None


def _mapped(value: CutSequence, local: torch.Tensor) -> CutSequence:
    return CutSequence.like(local, value.ranks, value.shape[DIM], value.phase)


def _positions_of(gradient: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    if isinstance(gradient, CutSequence):
        return gradient.local
    return _own(gradient, ranks, gradient.dim() + DIM)


class _Shut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local, ranks, length):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks = ranks
        return CutSequence.like(local, ranks, length)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None, None
        refuse_again(gradient, "a sequence that is cut over ranks")
        return _positions_of(gradient, ctx.ranks), None, None


class _Open(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cut):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.ranks, ctx.length = cut.ranks, cut.shape[DIM]
        return cut.local.view_as(cut.local)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None
        refuse_again(gradient, "a sequence that is cut over ranks")
        return CutSequence.like(gradient, ctx.ranks, ctx.length, "backward")


class _Close(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cut):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        return cut.whole()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None
        return gradient


def shut(local: torch.Tensor, ranks: Ranks, length: int) -> torch.Tensor:
    """What a block gives: a rank's positions as the value they are of."""
    return _Shut.apply(local, ranks, length)


def opened(cut: torch.Tensor) -> torch.Tensor:
    """What a block computes on: a rank's positions of a cut value."""
    return _Open.apply(cut)


def cut_over_positions(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """A value as a cut one; a whole value is sliced, and backward its gradient is gathered."""
    if isinstance(value, CutSequence):
        return value
    return shut(take_positions(value, ranks, value.dim() + DIM), ranks, value.shape[DIM])


def made_whole(value: torch.Tensor) -> torch.Tensor:
    """A whole value for a cut one, with its history; any other tensor as it is."""
    return _Close.apply(value) if isinstance(value, CutSequence) else value


def as_taken(tensors: Sequence[torch.Tensor], cut: int | None, ranks: Ranks) -> Sequence[torch.Tensor]:
    """The tensors of a call as a program takes them: the one numbered `cut` over positions, all others whole."""
    if cut is None and not any(type(tensor) is CutSequence for tensor in tensors):
        return tensors
    return [cut_over_positions(t, ranks) if i == cut else made_whole(t) for i, t in enumerate(tensors)]
