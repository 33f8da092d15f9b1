"""Rows that pick parts of a stack of which a rank holds some: what computes each row by itself takes them, all else their sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autotp.errors import UnsoundPlanError
from tests.placement.test_flow import exact, node_of, placed, reduced

WIDTH, INNER, PARTS = 8, 6, 4
ROWS = torch.randn(7, WIDTH, requires_grad=True)
NUMBERS = torch.tensor([3, 0, 2, 2, 1, 3, 0])
UP = ("up", 0, 0)


class Stacks(nn.Module):
    """Each row times its own of four matrices, something between, and its own of four other matrices."""

    def __init__(
        self, between: Callable[..., torch.Tensor] = torch.relu, after: Callable[..., torch.Tensor] = torch.clone
    ) -> None:
        super().__init__()
        self.between, self.after_all = between, after
        self.up, self.down = (nn.Parameter(torch.randn(PARTS, a, b)) for a, b in ((WIDTH, INNER), (INNER, WIDTH)))
        self.scale = nn.Parameter(torch.rand(INNER) + 0.5)

    def forward(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        inner = self.between(self.product(rows, self.up[numbers])) * self.scale
        return self.after_all(self.product(inner, self.down[numbers]))

    def product(self, rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        return (rows.unsqueeze(1) @ matrices).squeeze(1)


class Only(Stacks):
    """The same, of which nothing else may be cut: the inner width is normalised in another way than by a sum."""

    def forward(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        inner = self.between(self.product(rows, self.up[numbers])) * self.scale
        return self.after_all(self.product(inner.softmax(-1), self.down[numbers]))


def counted(
    between: Callable[..., Any] = torch.relu, after: Callable[..., Any] = torch.clone, tp: int = 2
) -> dict[str, int]:
    return exact(Only(between, after), ROWS, NUMBERS, tp=tp)


# The scale is used on some rows by each rank, and so are the rows themselves.
ONE_SUM = {"all_reduce forward activation": 1, "all_reduce backward activation": 1, "all_reduce backward parameter": 1}


def test_both_stacks_are_cut_over_their_parts() -> None:
    placement = placed(Only(), UP, inputs=(ROWS, NUMBERS))
    assert {n.target for n in placement.flow.held if placement.flow.held[n] and n.op == "get_attr"} == {"up", "down"}
    assert len(reduced(placement)) == 1


@pytest.mark.parametrize("tp", [2, 4, 5])
def test_the_parts_are_spread_over_any_number_of_ranks(tp: int) -> None:
    assert counted(tp=tp) == ONE_SUM


@pytest.mark.parametrize(
    "between",
    [
        torch.relu,
        torch.exp,
        lambda y: y + 1,
        lambda y: torch.where(y > 0, y, 0.1 * y),
        lambda y: torch.cat([-y[:, 3:], y[:, :3]], -1),
        lambda y: y.view(-1, 2, 3).transpose(1, 2).flatten(1),
        lambda y: y * y.square().mean(-1, keepdim=True),
    ],
    ids=["relu", "exp", "shifted", "masked", "joined", "viewed", "statistic"],
)
def test_what_computes_each_row_by_itself_needs_no_sum(between: Callable[..., torch.Tensor]) -> None:
    assert counted(between, tp=3) == ONE_SUM


def test_numbers_may_count_from_the_end() -> None:
    assert exact(Only(), ROWS, NUMBERS - PARTS, tp=3) == ONE_SUM


def test_rows_that_are_mixed_are_summed_first() -> None:
    assert counted(after=lambda z: z.flip(0)) == ONE_SUM
    assert counted(after=lambda z: z.view(-1, 1, WIDTH).sum(0)) == ONE_SUM
    assert counted(lambda y: y.cumsum(0).tanh())["all_reduce forward activation"] == 2


def test_numbers_without_a_derivative_at_zero_are_summed_first() -> None:
    """A row that is of no use may be zero, and infinity times its zero gradient is no number."""
    normalised = Only(lambda y: y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt())
    placement = placed(normalised, UP, inputs=(ROWS, NUMBERS))
    first, _ = reduced(placement)
    assert node_of(placement, first).meta["val"].shape[-1] == 1
    assert exact(normalised, ROWS, NUMBERS)["all_reduce forward activation"] == 2


def test_whole_numbers_are_summed_first() -> None:
    """They may be indices, and a number of no use is out of bounds."""
    table = torch.randn(5, 1)
    found = counted(lambda y: y * table[y.sigmoid().mul(4.9).long().amax(-1)])
    assert found["all_reduce forward activation"] == 2


def test_a_row_alone_is_summed_at_once() -> None:
    """A dim of size one has no axis by which its rows could be followed: what was looked up is summed, both in one call."""
    placement = placed(Only(torch.exp), UP, inputs=(ROWS[:1], NUMBERS[:1]))
    assert len(reduced(placement)) == 2
    counts = exact(Only(torch.exp), ROWS[:1], NUMBERS[:1])
    assert counts["all_reduce forward activation"] == 1


def test_truth_values_have_no_sum() -> None:
    with pytest.raises(UnsoundPlanError, match=r"needs all rows of gt, which has no sum"):
        placed(Only(lambda y: y * (y > 0).flip(0)), UP, inputs=(ROWS, NUMBERS))


class ByEnds(nn.Module):
    """Groups of rows, and a part of a table added to each row by its number; the ends are counted from the numbers."""

    def __init__(self, *, sort: bool = True) -> None:
        super().__init__()
        self.sort = sort
        self.stack, self.bias = nn.Parameter(torch.randn(PARTS, WIDTH, INNER)), nn.Parameter(torch.randn(PARTS, INNER))

    def forward(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        if self.sort:
            numbers = numbers.sort().values
        counts = torch.histc(numbers.float(), PARTS, 0, PARTS - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        return (functional.grouped_mm(rows, self.stack, offs=ends) + self.bias[numbers]).softmax(-1)


def test_ends_that_are_counted_are_the_numbers_themselves() -> None:
    placement = placed(ByEnds(), ("stack", 0, 0), inputs=(ROWS, NUMBERS))
    assert placement.flow.routed[node_of(placement, "softmax")].routing.by.name == "getitem"
    counts = exact(ByEnds(), ROWS, NUMBERS)
    assert counts == {"all_reduce forward activation": 1, "all_reduce backward activation": 1}


def test_numbers_that_are_not_sorted_pick_otherwise() -> None:
    """Where the groups end then says something else than the numbers, so what is made by both is summed."""
    placement = placed(ByEnds(sort=False), ("stack", 0, 0), ("bias", 0, 0), inputs=(ROWS, NUMBERS))
    assert reduced(placement).keys() == {"add"}
    assert not placement.flow.routed.keys() & {node_of(placement, "add"), node_of(placement, "softmax")}
