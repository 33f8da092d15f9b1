"""Arithmetic of layouts for one rank: where a position is, what is there besides symbolic sizes, what stands in paddings."""

from __future__ import annotations

import torch

from ..axes.layout import Layout, Leaf, SumLayout, coordinate, is_padded
from ..outside.own import FUNCTIONS
from ..runtime.collectives.slices import SYMBOLIC


def filled(value: torch.Tensor, dim: int, layout: Layout, rank: int) -> torch.Tensor:
    """A local value with one half (or one) where it has padding along a dim; no gradient flows there."""
    if not is_padded(layout):
        return value
    if isinstance(layout, Leaf):
        assert layout.cut is not None
        present = max(0, min(layout.cut.local, layout.size - coordinate(layout.cut.over, rank) * layout.cut.local))
        data, padding = value.split([present, layout.cut.local - present], dim)
        number = 0.5 if value.is_floating_point() or value.is_complex() else 1
        return FUNCTIONS.cat([data, torch.full_like(padding, number)], dim)
    if isinstance(layout, SumLayout):
        parts = zip(value.split([part.local_size for part in layout.parts], dim), layout.parts, strict=True)
        return FUNCTIONS.cat([filled(part, dim, own, rank) for part, own in parts], dim)
    sizes = [-1 if part.size >= SYMBOLIC else part.local_size for part in layout.parts]
    value = value.unflatten(dim, sizes)
    for i, part in enumerate(layout.parts):
        value = filled(value, dim + i, part, rank)
    return value.flatten(dim, dim + len(sizes) - 1)


def static_size(layout: Layout) -> tuple[int, int]:
    """Local and global size without the symbolic factors, which are the same on all ranks."""
    if isinstance(layout, Leaf):
        return (1, 1) if layout.size >= SYMBOLIC else (layout.local_size, layout.size)
    if isinstance(layout, SumLayout):
        return layout.local_size, layout.size
    local = whole = 1
    for part in layout.parts:
        a, b = static_size(part)
        local, whole = local * a, whole * b
    return local, whole


def local_offset(layout: Layout, offset: int) -> int:
    """Where a position that lies between parts is on a rank."""
    if offset in (0, layout.size):
        return 0 if offset == 0 else layout.local_size
    if isinstance(layout, Leaf):
        assert layout.cut is None, "a slice starts inside an axis that is cut"
        return offset
    if isinstance(layout, SumLayout):
        local = 0
        for part in layout.parts:
            if offset <= part.size:
                return local + local_offset(part, offset)
            offset, local = offset - part.size, local + part.local_size
    major, *minor = layout.parts
    size = local = 1
    for part in minor:
        size, local = size * part.size, local * part.local_size
    assert offset % size == 0, "a slice starts inside a product"
    return local_offset(major, offset // size) * local
