"""Attention written as products around a softmax counts as the core does: operations, and the keys and values that it reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autotp.huggingface.examples import examples_for
from autotp.planner.choose import placed
from autotp.planner.cost import DEFAULT_HARDWARE, Workload, hardware
from autotp.planner.survey import survey
from autotp.planner.weigh import Weigher
from autotp.planner.work import Counter

HEADS, GROUPS, WIDTH = 8, 2, 64


class Attention(nn.Module):
    def __init__(self, written_out: bool) -> None:
        super().__init__()
        self.written_out, self.size = written_out, WIDTH // HEADS
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, GROUPS * self.size), nn.Linear(WIDTH, GROUPS * self.size)

    def heads(self, x: torch.Tensor, repeats: int) -> torch.Tensor:
        x = x.view(*x.shape[:2], -1, self.size).transpose(1, 2)
        return x[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2) if repeats > 1 else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, (k, v) = self.heads(self.q(x), 1), (self.heads(each(x), HEADS // GROUPS) for each in (self.k, self.v))
        if self.written_out:
            y = torch.softmax(q @ k.transpose(-1, -2) * self.size**-0.5, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def counted(written_out: bool) -> tuple[float, float]:
    """Operations of 32 tokens, and elements of the keys and values of as many, left whole."""
    model = Attention(written_out)
    (problem,) = survey(model, examples_for(model, torch.randn(2, 16, WIDTH))).problems.values()
    weigher = Weigher(problem.graph, hardware(DEFAULT_HARDWARE), Workload(32, batch=2, keys=16))
    counter = Counter(placed(problem, {}, weigher), weigher)
    return weigher.sizing.number(counter.all_flops()), weigher.sizing.number(counter.attended())


def test_both_ways_to_write_attention_count_the_same() -> None:
    flops, read = counted(True)
    assert (flops, read) == pytest.approx(counted(False))
    linear = 2 * 32 * WIDTH * (2 * WIDTH + 2 * GROUPS * WIDTH // HEADS)
    assert flops == pytest.approx(linear + 2 * 2 * 2 * 16 * 16 * WIDTH)
    assert read == pytest.approx(2 * 32 * GROUPS * WIDTH // HEADS)  # not repeated for the heads
