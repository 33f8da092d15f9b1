"""Nothing stays of a call once its result is gone: of its trace, and of what it kept for a backward that never came."""

from __future__ import annotations

import copy
import gc
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import autotp
from autotp.api import join_ranks
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.planner.survey import survey
from autotp.runtime.groups.simulate import simulate
from tests.parts import distance

WIDTH = 24
EXAMPLE = (torch.randn(4, 6, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64),)


class Block(nn.Module):
    """Its activations save what they make, and not what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x.tanh()).sigmoid())


def on_ranks(run: Any, *, sequence: bool) -> list[Any]:
    torch.manual_seed(0)
    dense = nn.Sequential(*(Block() for _ in range(3))).double()
    plan = autotp.plan(dense, 2, example=EXAMPLE, sequence_parallel=sequence)
    assert all(unit.sequence is sequence for unit in plan.units)
    compilers = make_compilers(plan, survey(dense, examples_for(dense, EXAMPLE), ()))
    true = run(copy.deepcopy(dense))

    def on_rank(ranks: Any) -> Any:
        model = apply_plan(copy.deepcopy(dense), plan, ranks, compilers)
        join_ranks(model, ranks)
        return distance(run(model), true)

    return simulate(2, on_rank)


def living() -> tuple[int, int]:
    """How many tensors there are, and how many traces."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about names of its own that are looked at
        found = gc.get_objects()
        return sum(isinstance(o, torch.Tensor) for o in found), sum(isinstance(o, FakeTensorMode) for o in found)


def forward(model: nn.Module) -> list[torch.Tensor]:
    """Calls that record gradients, of several sizes, and no backward."""
    return [model(EXAMPLE[0][:rows]).detach() for rows in (4, 3, 2, 4)]


@pytest.mark.parametrize("sequence", [False, True])
def test_calls_without_a_backward_leave_nothing(sequence: bool) -> None:
    assert max(on_ranks(forward, sequence=sequence)) < 1e-12
    before = living()
    assert max(on_ranks(forward, sequence=sequence)) < 1e-12
    assert all(now <= then for now, then in zip(living(), before, strict=True))  # caches of other tests may forget
