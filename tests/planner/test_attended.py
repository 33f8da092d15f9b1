"""Attention written as products around a softmax counts as the core does: operations, and the keys and values that it reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autotp.huggingface.examples import examples_for
from autotp.planner.choose import placed
from autotp.planner.cost import DEFAULT_HARDWARE, Workload, hardware
from autotp.planner.counter import Counter
from autotp.planner.survey import survey
from autotp.planner.weigh import Weigher

HEADS, GROUPS, WIDTH = 8, 2, 64


class Attention(nn.Module):
    """With the core, or as products around a softmax: of the scores, of them and a mask, or of what a mask leaves of them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.size = way, WIDTH // HEADS
        self.register_buffer("mask", torch.ones(64, 64, dtype=torch.bool).tril())
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, GROUPS * self.size), nn.Linear(WIDTH, GROUPS * self.size)

    def heads(self, x: torch.Tensor, repeats: int) -> torch.Tensor:
        x = x.view(*x.shape[:2], -1, self.size).transpose(1, 2)
        return x[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2) if repeats > 1 else x

    def scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        if self.way != "together":
            return q @ k * self.size**-0.5
        added = torch.baddbmm(torch.zeros(1, 1, 1), q.flatten(0, 1), k.flatten(0, 1), beta=1.0, alpha=0.5)
        return added.unflatten(0, q.shape[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, (k, v) = self.heads(self.q(x), 1), (self.heads(each(x), HEADS // GROUPS) for each in (self.k, self.v))
        if self.way == "core":
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores, mask = self.scores(q, k.transpose(-1, -2)), self.mask[: x.shape[1], : x.shape[1]]
            if self.way == "added":
                scores = (1.0 - mask.to(x.dtype)) * -1e4 + scores
            elif self.way == "chosen":
                scores = torch.where(mask, scores, torch.tensor(-1e4))
            y = F.dropout(torch.softmax(scores, -1), 0.1, training=self.training) @ v
        return self.out(y.transpose(1, 2).flatten(2))


def counted(way: str) -> tuple[float, float]:
    """Operations of 32 tokens, and elements of the keys and values of as many, left whole."""
    model = Attention(way)
    (problem,) = survey(model, examples_for(model, torch.randn(2, 16, WIDTH))).problems.values()
    weigher = Weigher(problem.graph, hardware(DEFAULT_HARDWARE), Workload(32, batch=2, keys=16))
    counter = Counter(placed(problem, {}, weigher), weigher)
    return weigher.sizing.number(counter.all_flops()), weigher.sizing.number(counter.reread())


@pytest.mark.parametrize("way", ["scores", "added", "chosen", "together"])
def test_every_way_to_write_attention_counts_the_same(way: str) -> None:
    flops, read = counted(way)
    assert (flops, read) == pytest.approx(counted("core"))
    linear = 2 * 32 * WIDTH * (2 * WIDTH + 2 * GROUPS * WIDTH // HEADS)
    assert flops == pytest.approx(linear + 2 * 2 * 2 * 16 * 16 * WIDTH)
    assert read == pytest.approx(2 * 32 * GROUPS * WIDTH // HEADS)  # not repeated for the heads
