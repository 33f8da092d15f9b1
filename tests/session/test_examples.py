"""The calls that a model is planned from: the user's, and one that is made from it, which the model may not take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.errors import UsageError
from tests.contract.parts import HIDDEN, Mlp, Net, twins, values


class Padded(nn.Module):
    """Takes a mask of batch one, which it repeats itself (as models of video do)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = twins(Mlp)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.inner(x * mask.expand(1, -1, -1).repeat(x.shape[0], 1, 1))


class Listed(nn.Module):
    """Takes a list of samples, whose first dim is one of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = twins(Mlp)

    def forward(self, samples: list[torch.Tensor], settings: dict[str, float]) -> torch.Tensor:
        x = torch.stack([sample.reshape(5, HIDDEN) for sample in samples])
        return self.inner(x * settings["scale"])


CALLS: dict[str, tuple[type[nn.Module], autotp.Arguments]] = {
    "a mask of batch one": (Padded, autotp.Arguments(values(1, 5, HIDDEN), values(1, 5, HIDDEN))),
    "a list of samples": (Listed, autotp.Arguments([values(5, 2, HIDDEN // 2)] * 2, {"scale": 0.5})),
}


@pytest.mark.parametrize("what", CALLS)
def test_where_the_second_call_fails_the_first_alone_serves_and_the_plan_says_so(what: str) -> None:
    kind, example = CALLS[what]
    plan = autotp.plan(kind(), 2, example=example)
    assert plan.unit_of("inner.blocks.0").count("forward") == 1
    assert "planned from the example alone" in plan.sizes
    assert autotp.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("what", CALLS)
def test_such_a_model_is_right(what: str) -> None:
    kind, example = CALLS[what]
    report = autotp.verify(kind(), 2, example=example)
    report.raise_for_failure()
    assert report.elements[1] < report.elements[0]


def test_a_plan_from_two_calls_says_nothing_of_sizes() -> None:
    assert autotp.plan(twins(Mlp), 2, example=(values(2, 5, HIDDEN),)).sizes == ""


class Pair(nn.Module):
    """Its arguments are a tuple and a dict, which look like all of a call's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net(Mlp(), Mlp())

    def forward(self, pair: tuple[torch.Tensor, ...], settings: dict[str, Any]) -> torch.Tensor:
        return self.inner(pair[0] + pair[1] * settings["scale"])


def test_arguments_are_what_they_are() -> None:
    call = autotp.Arguments((values(2, 5, HIDDEN), values(2, 5, HIDDEN, seed=1)), {"scale": 2.0})
    assert autotp.plan(Pair(), 2, example=call).unit_of("inner.blocks.0").count("forward") == 1
    autotp.verify(Pair(), 2, example=call).raise_for_failure()


def test_what_is_no_call_is_refused() -> None:
    with pytest.raises(UsageError, match=r"autotp\.Arguments"):
        autotp.plan(Pair(), 2, example=3)
