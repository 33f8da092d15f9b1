"""A value cut over positions: whole to everybody else, with gradients that are the dense ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autotp.axes.layout import Factor
from autotp.runtime.collectives.again import gathering_again
from autotp.runtime.collectives.positions import gather_positions, scatter_sum, shares
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.sequence import cut_over_positions, opened, shut
from autotp.runtime.results.tensor import CutResult, closed

X = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
W = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_shares_are_as_even_as_they_can_be() -> None:
    assert shares(5, 3) == [2, 2, 1]
    assert shares(6, 3) == [2, 2, 2]
    assert shares(2, 3) == [1, 1, 0]


def given(ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
    x = X.clone().requires_grad_()
    cut = cut_over_positions(x, ranks)
    return x, shut(opened(cut).tanh(), ranks, 5)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_whoever_computes_with_it_computes_with_the_whole(size: int) -> None:
    x = X.clone().requires_grad_()
    y = x.tanh()
    true = y * y.mean(1, keepdim=True) + y @ W
    true.pow(2).sum().backward()

    def run(ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, y = given(ranks)
        assert isinstance(y, CutResult)
        assert y.shape == X.shape
        found = y * y.mean(1, keepdim=True) + closed(y) @ W
        found.pow(2).sum().backward()
        return found.detach(), x.grad

    for found, gradient in simulate(size, run):
        assert gradient is not None
        assert x.grad is not None
        assert torch.allclose(found, true)
        assert torch.allclose(gradient, x.grad)


def test_gradients_of_several_readers_are_added_where_they_are() -> None:
    """Two that read positions, one the whole; and the value's own gradient is cut as it is, or whole."""

    def run(ranks: Ranks) -> Any:
        x, y = given(ranks)
        y.retain_grad()
        total = opened(y).pow(2).sum() + opened(y).sum()
        total.backward(retain_graph=True)
        kind, first = type(y.grad), closed(y.grad)
        (closed(y) @ W).sum().backward()
        return kind, first, x.grad

    y = X.tanh()
    whole = (1 - y**2) * (2 * y + 1 + W.sum(1))
    for kind, first, gradient in simulate(3, run):
        assert kind is CutResult
        assert torch.allclose(first, 2 * y + 1)
        assert torch.allclose(gradient, whole)


def test_what_is_written_into_it_stays() -> None:
    def run(ranks: Ranks) -> Any:
        _, y = given(ranks)
        with torch.no_grad():
            y.mul_(torch.arange(5.0, dtype=torch.float64)[:, None])
        assert isinstance(y, CutResult)
        return closed(y), gather_positions(opened(y), ranks, 1, 5)

    for whole, gathered in simulate(3, run):
        assert torch.allclose(whole, X.tanh() * torch.arange(5.0, dtype=torch.float64)[:, None])
        assert torch.equal(whole, gathered)


@pytest.mark.parametrize("size", [2, 3])
def test_a_sum_is_scattered_and_gathered_again(size: int) -> None:
    """Each rank has a part of the product; backward what it read is gathered once for both products that kept it."""

    def run(ranks: Ranks) -> Any:
        x, y = given(ranks)
        weights = [(W * (ranks.rank + k)).requires_grad_() for k in (1, 2)]
        with ranks.logging() as log:
            with gathering_again():
                whole = gather_positions(opened(y), ranks, 1, 5, (Factor(ranks.size, 1),), again=True)
                total = scatter_sum(whole @ weights[0] + whole @ weights[1], ranks, 1)
            total.pow(2).sum().backward()
        return total.detach(), x.grad, [weight.grad for weight in weights], log.calls

    factor = sum(2 * rank + 3 for rank in range(size))
    x = X.clone().requires_grad_()
    true = x.tanh() @ (W * factor)
    true.pow(2).sum().backward()
    runs = simulate(size, run)
    assert torch.allclose(torch.cat([total for total, *_ in runs], 1), true)
    of_weight = X.tanh().flatten(0, 1).t() @ (2 * true.detach()).flatten(0, 1)
    for _, gradient, weights, calls in runs:
        assert x.grad is not None
        assert torch.allclose(gradient, x.grad)
        assert all(torch.allclose(weight, of_weight) for weight in weights)
        assert [(call.kind, call.phase) for call in calls] == [
            ("all_gather", "forward"),
            ("reduce_scatter", "forward"),
            ("all_gather", "backward"),  # of the sum's gradient
            ("all_gather", "backward"),  # of what both products read
            ("reduce_scatter", "backward"),
            ("all_gather", "backward"),  # of the gradient of what was cut at first
        ]
