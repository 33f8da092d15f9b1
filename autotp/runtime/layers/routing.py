"""Tables of which a rank holds some parts, where data say which part a row takes: local work on the rows of those parts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...axes.layout import Leaf
from ..groups.ranks import Ranks


def _first(ranks: Ranks, parts: Leaf) -> int:
    """The first part that this rank holds; with padding there may be none of that number."""
    assert parts.cut is not None
    return ranks.coordinate(parts.cut.over) * parts.cut.local


def has_own_number(numbers: torch.Tensor, ranks: Ranks, parts: Leaf) -> torch.Tensor:
    """For each row, of which `numbers` has the part, whether this rank holds that part."""
    local = numbers % parts.size - _first(ranks, parts)  # a negative number counts from the end
    return (local >= 0) & (local < parts.local_size)


def is_between_ends(ends: torch.Tensor, count: int, ranks: Ranks, parts: Leaf) -> torch.Tensor:
    """For each of so many rows, in groups that end at `ends`, whether this rank holds its part."""
    bounds, rows = _bounds(ends, ranks, parts), torch.arange(count, device=ends.device)
    return (rows >= bounds[0]) & (rows < bounds[-1])


def _bounds(ends: torch.Tensor, ranks: Ranks, parts: Leaf) -> torch.Tensor:
    """Where the first group of this rank starts, and where each of them ends."""
    first = _first(ranks, parts)
    places = torch.arange(first, first + parts.local_size + 1, device=ends.device)
    return torch.nn.functional.pad(ends, (1, 0))[places.clamp(max=parts.size)]


def own_rows(value: torch.Tensor, own: torch.Tensor, dim: int) -> torch.Tensor:
    """A value with zeros, and no gradient, in the rows along a dim that are not this rank's own."""
    return torch.where(own.view([-1 if i == dim else 1 for i in range(value.dim())]), value, 0)


def parts_of_rows(table: torch.Tensor, numbers: torch.Tensor, ranks: Ranks, parts: Leaf) -> torch.Tensor:
    """The part that each row takes of a table, of which this rank holds some; any for the rows of other ranks."""
    return table[(numbers % parts.size - _first(ranks, parts)).clamp(0, table.shape[0] - 1)]


def own_groups(
    product: Callable[..., torch.Tensor],
    rows: torch.Tensor,
    matrices: torch.Tensor,
    ends: torch.Tensor,
    ranks: Ranks,
    parts: Leaf,
) -> torch.Tensor:
    """A product of groups of rows [n, k], each with its matrix [e, k, m] of those that this rank holds; zero in other rows.

    The rank's rows come first for it, so that nothing else is computed; where they start stays on the device.
    """
    bounds, count = _bounds(ends, ranks, parts), max(1, rows.shape[0])
    places = torch.arange(rows.shape[0], device=ends.device)
    own = places < bounds[-1] - bounds[0]
    given = own_rows(rows[(places + bounds[0]) % count], own, 0)
    result = own_rows(product(given, matrices, bounds[1:] - bounds[0]), own, 0)
    return result[(places - bounds[0]) % count]
