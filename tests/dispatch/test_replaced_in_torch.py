"""Somebody puts something else in the place of a function or method of torch between two calls: the second one goes by that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.planner.arguments import Arguments
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.pipeline import Session

TP = 2


class Block(nn.Module):
    def __init__(self, act: Callable[..., Any]) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 32), act, nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(self.act(self.up(x)))


class Model(nn.Module):
    def __init__(self, act: Callable[..., Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(act) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def method(value: torch.Tensor) -> torch.Tensor:
    return value.relu()


def operator(value: torch.Tensor) -> torch.Tensor:
    return value.sigmoid() + value


def item(value: torch.Tensor) -> torch.Tensor:
    return value[..., :] * 2


def function(value: torch.Tensor) -> torch.Tensor:
    return torch.relu(value)


def functions_own(value: torch.Tensor) -> torch.Tensor:
    return F.selu(value)  # which calls torch.selu


CASES = [
    (method, torch.Tensor, "relu", torch.Tensor.sigmoid),
    (operator, torch.Tensor, "__add__", torch.Tensor.__mul__),
    (item, torch.Tensor, "__getitem__", lambda value, at: torch.narrow(value, 0, 0, value.shape[0]) + 1),
    (function, torch, "relu", torch.tanh),
    (functions_own, torch, "selu", torch.tanh),
    (nn.SiLU(), F, "silu", F.mish),
]


@pytest.mark.parametrize(("act", "place", "name", "other"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_the_next_call_goes_by_what_is_there(
    act: Any, place: Any, name: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    dense, x = Model(act).double(), torch.randn(2, 5, 16, dtype=torch.float64)
    session = Session(copy.deepcopy(dense), example=Arguments(x))
    plan = session.plan(TP)
    compilers = make_compilers(plan, session.found)
    parallel: dict[int, nn.Module] = {}

    def begin(ranks: Ranks) -> torch.Tensor:
        parallel[ranks.rank] = apply_plan(copy.deepcopy(dense), plan, ranks, compilers)
        result: torch.Tensor = parallel[ranks.rank](x)
        return result

    def call() -> list[torch.Tensor]:
        return simulate(TP, lambda ranks: parallel[ranks.rank](x))

    before = dense(x)
    torch.testing.assert_close(simulate(TP, begin)[0], before, rtol=1e-12, atol=1e-12)
    with monkeypatch.context() as replaced:
        replaced.setattr(place, name, other)
        after, found = dense(x), call()
    assert not torch.allclose(before, after)
    torch.testing.assert_close(found[0], after, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(call()[0], before, rtol=1e-12, atol=1e-12)
