"""A unit that has no program gathers what its own Python reads; the modules within it compute with their parts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.planner.make import make_plan
from autotp.planner.survey import survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate

HIDDEN, INNER = 16, 24
MATRIX = HIDDEN * INNER


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER, bias=False), nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


class Counting(nn.Module):
    """Two MLPs, and Python between them that has no program: it counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.way = 0, "program"
        self.first, self.second = Mlp(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "program":
            return self.second(self.first(x))
        self.calls += 1
        y = self.first(x) * self.calls
        if self.way == "checkpoint":
            return checkpoint(self.second, y, use_reentrant=False)
        if self.way == "reentrant":
            return checkpoint(self.second, y, use_reentrant=True)
        if self.way == "read":
            y = y @ self.second.up.weight.T @ self.second.down.weight.T
        return self.second(y)


# In elements. What is checkpointed is computed whole both times.
GATHERED = {"program": 0, "parts": 0, "read": 2 * MATRIX, "checkpoint": 4 * MATRIX, "reentrant": 4 * MATRIX}


def run(model: Any, way: str, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a call gives, and the gradient of its input."""
    model.way = way
    x = x.clone().requires_grad_()
    found = model(x)
    found.square().sum().backward()
    assert x.grad is not None
    return found.detach(), x.grad


@pytest.mark.filterwarnings("ignore:the model computes some calls with whole weights")
def test_only_what_the_unit_itself_reads_is_gathered() -> None:
    torch.manual_seed(0)
    model, x = Counting().double(), torch.randn(2, 5, HIDDEN, dtype=torch.float64)
    found = survey(model, examples_for(model, x.clone().requires_grad_()))
    plan = make_plan(model, found, 3)
    compilers = make_compilers(plan, found)
    assert len(plan.units[0].layouts()) == 4

    def on_rank(ranks: Ranks) -> list[tuple[str, tuple[torch.Tensor, ...], int]]:
        parallel = apply_plan(copy.deepcopy(model), plan, ranks, compilers)
        seen = []
        for way in (*GATHERED, *GATHERED):
            with ranks.logging() as log:
                results = run(parallel, way, x)
            seen.append((way, results, sum(sent.elements * 3 for sent in log.calls if sent.phase == "whole")))
        return seen

    dense_model = copy.deepcopy(model)
    dense = [run(dense_model, way, x) for way in (*GATHERED, *GATHERED)]
    for seen in simulate(3, on_rank):
        assert {way: gathered for way, _, gathered in seen} == GATHERED
        for (_, results, _), expected in zip(seen, dense, strict=True):
            assert all(torch.allclose(own, true, atol=1e-12) for own, true in zip(results, expected, strict=True))
