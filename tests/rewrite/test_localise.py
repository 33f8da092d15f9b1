"""Arguments and counts that speak of sizes, of values that are cut along one dim and vary in another from call to call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import autotp

MEANS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all": torch.mean,
    "rows and the cut dim": lambda y: y.mean((0, 2)).square().sum(),
    "the cut dim": lambda y: y.mean(-1, keepdim=True).square().mean(),
    "flat": lambda y: y.flatten(1).mean(1).square().sum() + y.flatten().mean(),
    "rows": lambda y: y.mean(0).square().sum() / y.shape[1],
    "a part": lambda y: y[..., :16].mean() * y[..., 16:].sum(),
}


class Block(nn.Module):
    def __init__(self, mean: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.up, self.down, self.mean = nn.Linear(16, 32), nn.Linear(32, 16), mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x).relu()
        return x + self.down(y) * self.mean(y)


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "tp"), [(name, tp) for name in MEANS for tp in (2, 3)])
def test_means_are_of_as_many_numbers_as_there_are(name: str, tp: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(MEANS[name]), Block(MEANS[name]))
    report = autotp.verify(model, tp, example=torch.randn(5, 7, 16).requires_grad_())
    report.raise_for_failure()
    assert report.elements[1] < 0.8 * report.elements[0]
