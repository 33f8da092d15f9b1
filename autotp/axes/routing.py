"""Who picks what: the value that says which part of a table every row takes, seen through what is computed from it."""

from __future__ import annotations

import operator
from typing import Any

import torch

aten = torch.ops.aten
_SAME_NUMBERS = (aten.to.dtype, aten._to_copy.default, aten.clone.default, aten.detach.default)


def chosen_by(by: torch.fx.Node, ends: bool, count: int) -> tuple[torch.fx.Node, bool]:
    """The numbers of the parts that rows pick, of which there are `count`, and False, where they can be told.

    Where groups of rows end is told by the numbers themselves if it is counted from them, in order. Otherwise the value
    and how it says so are returned as they are.
    """
    numbers = _counted(_converted_from(by), count) if ends else _whole_numbers(by)
    return (by, ends) if numbers is None else (numbers, False)


def _converted_from(node: torch.fx.Node) -> torch.fx.Node:
    while node.target in _SAME_NUMBERS:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _whole_numbers(node: torch.fx.Node) -> torch.fx.Node:
    """Whole numbers before they were converted, which leaves them what they are."""
    while node.target in _SAME_NUMBERS and not node.args[0].meta["val"].is_floating_point():  # type: ignore[union-attr]
        node = node.args[0]  # type: ignore[assignment]
    return node


def _counted(ends: torch.fx.Node, count: int) -> torch.fx.Node | None:
    """The sorted numbers of which a running sum over a histogram with a bin for each number gives the ends."""
    if ends.target is not aten.cumsum.default or _argument(ends, 1, "dim") != 0:
        return None
    bins = _converted_from(ends.args[0])  # type: ignore[arg-type]
    if bins.target is not aten.histc.default:
        return None
    wanted = (count, 0, count - 1)
    if tuple(_argument(bins, place, name) for place, name in ((1, "bins"), (2, "min"), (3, "max"))) != wanted:
        return None
    numbers = _whole_numbers(bins.args[0])  # type: ignore[arg-type]
    return numbers if _is_sorted(numbers) else None


def _is_sorted(node: torch.fx.Node) -> bool:
    """Returns if these are the values of a sort along their only dim, the smallest first."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return False
    sort = node.args[0]
    assert isinstance(sort, torch.fx.Node)
    ascending = sort.target is aten.sort.default and not _argument(sort, 2, "descending")
    return ascending and node.meta["val"].dim() == 1


def _argument(node: torch.fx.Node, place: int, name: str) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)
