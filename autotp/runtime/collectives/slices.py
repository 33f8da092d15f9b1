"""Slices of values by layout: take a rank's part of a whole value, put parts together, keep padding's gradient zero."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from ...axes.layout import (
    PADDING,
    Factor,
    Factors,
    Layout,
    Leaf,
    ProductLayout,
    SumLayout,
    coordinate,
    factors_of,
    is_even,
    is_padded,
    is_whole,
    local_indices,
    peers,
)
from ...outside.own import FUNCTIONS
from .added import at_once

# A leaf of this size or more stands for a symbolic one (see `axes.sizes`), read off the tensor at run time.
SYMBOLIC = 1_000_003


def take(value: torch.Tensor, layouts: Sequence[Layout | None], rank: int) -> torch.Tensor:
    """This rank's part of a whole value, dim by dim; padding is zero. Differentiable by itself."""
    for dim, layout in enumerate(layouts):
        if layout is not None and not is_whole(layout):
            value = _take_dim(value, dim, layout, rank)
    return value.contiguous()


def _take_dim(value: torch.Tensor, dim: int, layout: Layout, rank: int) -> torch.Tensor:
    if is_whole(layout):
        return value
    if isinstance(layout, Leaf):
        return _take_axis(value, dim, layout, rank)
    if isinstance(layout, SumLayout):
        parts = value.split([part.size for part in layout.parts], dim)
        return FUNCTIONS.cat([_take_dim(v, dim, part, rank) for v, part in zip(parts, layout.parts, strict=True)], dim)
    sizes = [-1 if part.size >= SYMBOLIC else part.size for part in layout.parts]
    value = value.unflatten(dim, sizes)
    for i, part in enumerate(layout.parts):
        value = _take_dim(value, dim + i, part, rank)
    return value.flatten(dim, dim + len(sizes) - 1)


def _take_axis(value: torch.Tensor, dim: int, leaf: Leaf, rank: int) -> torch.Tensor:
    assert leaf.cut is not None
    length, start = leaf.cut.local, coordinate(leaf.cut.over, rank) * leaf.cut.local
    present = max(0, min(length, leaf.size - start))
    part = value.narrow(dim, min(start, leaf.size - present), present)
    if present == length:
        return part
    shape = list(value.shape)
    shape[dim] = length - present
    return FUNCTIONS.cat([part, value.new_zeros(shape)], dim)


@functools.lru_cache(maxsize=4096)
def indices(layout: Layout, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Local positions that hold data, and the global index of each."""
    pairs = [(i, j) for i, j in enumerate(local_indices(layout, rank)) if j != PADDING]
    return torch.tensor([i for i, _ in pairs], dtype=torch.long), torch.tensor([j for _, j in pairs], dtype=torch.long)


@functools.lru_cache(maxsize=4096)
def padding(layout: Layout, rank: int) -> torch.Tensor:
    """Local positions that are padding."""
    return torch.tensor([i for i, j in enumerate(local_indices(layout, rank)) if j == PADDING], dtype=torch.long)


def _places_of_cut(layout: ProductLayout) -> list[int]:
    return [i for i, part in enumerate(layout.parts) if not is_whole(part)]


def join(parts: Sequence[torch.Tensor], dim: int, layout: Layout, factors: Factors, rank: int) -> torch.Tensor:
    """Put the parts of all ranks along some factors together again along one dim; `rank` is any of them."""
    if isinstance(layout, ProductLayout) and len(cut := _places_of_cut(layout)) == 1:
        sizes = [-1 if part.size >= SYMBOLIC else part.local_size for part in layout.parts]
        apart = [part.unflatten(dim, sizes) for part in parts]
        value = join(apart, dim + cut[0], layout.parts[cut[0]], factors, rank)
        return value.flatten(dim, dim + len(sizes) - 1)
    if isinstance(layout, Leaf) and layout.cut is not None and layout.cut.over == factors:
        if layout.padded_size == layout.size:
            return FUNCTIONS.cat(list(parts), dim)
        kept = (max(0, min(layout.local_size, layout.size - i * layout.local_size)) for i in range(len(parts)))
        return FUNCTIONS.cat([part.narrow(dim, 0, size) for part, size in zip(parts, kept, strict=True)], dim)
    shape = list(parts[0].shape)
    shape[dim] = layout.size
    value = parts[0].new_zeros(shape)
    for part, owner in zip(parts, peers(rank, factors), strict=True):
        local, places = indices(layout, owner)
        source = part if len(local) == part.shape[dim] else part.index_select(dim, local.to(part.device))
        value = value.index_copy(dim, places.to(part.device), source)
    return value


def whole_size(local: int, layout: Layout) -> int:
    """The size of a whole dim, of a part's size; a size that is one of the call's own is in both."""
    return local * layout.size // layout.local_size if layout.local_size else layout.size


def assembled(parts: Sequence[torch.Tensor], layouts: Sequence[Layout]) -> torch.Tensor:
    """The whole value of which these are the parts of all ranks, without padding."""
    cut = [dim for dim, layout in enumerate(layouts) if not is_whole(layout)]
    if len(cut) == 1 and isinstance(layouts[cut[0]], Leaf):
        layout = layouts[cut[0]]
        if layout.cut.over == (Factor(len(parts), 1),):  # type: ignore[union-attr]
            return join(parts, cut[0], layout, (Factor(len(parts), 1),), 0)
    whole = parts[0].new_zeros([layout.size for layout in layouts])
    for rank, part in enumerate(parts):
        pairs = [indices(layout, rank) for layout in layouts]
        whole[_grid([place for _, place in pairs])] = part[_grid([position for position, _ in pairs])]
    return whole


def _grid(positions: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Index tensors that select the product of the positions in every dim."""
    return tuple(
        position.reshape([-1 if i == dim else 1 for i in range(len(positions))])
        for dim, position in enumerate(positions)
    )


def count_once(gradient: torch.Tensor, dim: int, layout: Layout, rank: int) -> torch.Tensor:
    """A local gradient that counts once over all ranks: segments that are whole beside cut ones on the first rank only."""
    if is_even(layout):
        return gradient
    assert not isinstance(layout, Leaf)
    if isinstance(layout, SumLayout):
        parts = []
        for part, own in zip(
            gradient.split([part.local_size for part in layout.parts], dim), layout.parts, strict=True
        ):
            first = all(factor.coordinate(rank) == 0 for factor in factors_of(layout) - factors_of(own))
            parts.append(count_once(part, dim, own, rank) if first else torch.zeros_like(part))
        return FUNCTIONS.cat(parts, dim)
    sizes = [-1 if part.size >= SYMBOLIC else part.local_size for part in layout.parts]
    gradient = gradient.unflatten(dim, sizes)
    for i, part in enumerate(layout.parts):
        gradient = count_once(gradient, dim + i, part, rank)
    return gradient.flatten(dim, dim + len(sizes) - 1)


class _KeepPaddingZero(torch.autograd.Function):
    """Identity forward; backward, the gradient of padding is zero."""

    @staticmethod
    def forward(ctx, value, places):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.places = places
        at_once(ctx)
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if gradient is None:
            return None, None
        if not ctx.places:
            return gradient, None
        # Who else has the gradient has its padding, which is nothing to anybody; a hook of his may write into it. A compiler's
        # graphs write into nothing, and it cannot see what is a view.
        compiled = torch.compiler.is_compiling()
        in_place = not compiled and not torch.is_grad_enabled() and 0 not in gradient.stride()
        made = gradient.data if in_place else gradient.clone()
        for dim, where in ctx.places:
            made.index_fill_(dim, where.to(made.device), 0)
        if in_place:
            return gradient, None
        # Who has a view of a gradient has its base too, which is the gradient itself or not: alike on all ranks.
        return made.view_as(made) if not compiled and gradient._is_view() else made, None


def keep_padding_zero(value: torch.Tensor, layouts: Sequence[Layout | None], rank: int) -> torch.Tensor:
    """A padded parameter whose padding gets no gradient, so that no optimizer moves it off zero.

    On ranks without padding it is a node of autograd's too: hooks run in one order on all ranks, and so do their collectives.
    """
    places = _paddings(layouts, rank)
    if not places or not (value.requires_grad and torch.is_grad_enabled()):
        return value
    return _KeepPaddingZero.apply(value, [(dim, where) for dim, where in places if len(where)])


def clear_padding(value: torch.Tensor, layouts: Sequence[Layout | None], rank: int) -> torch.Tensor:
    """A part of a parameter that somebody has written into, with zeros in its padding again."""
    for dim, where in _paddings(layouts, rank):
        value.index_fill_(dim, where.to(value.device), 0)
    return value


def _paddings(layouts: Sequence[Layout | None], rank: int) -> list[tuple[int, torch.Tensor]]:
    """The dims that may have padding, each with the places where this rank has it."""
    padded = ((dim, layout) for dim, layout in enumerate(layouts) if layout is not None and is_padded(layout))
    return [(dim, padding(layout, rank)) for dim, layout in padded]
