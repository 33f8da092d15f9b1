"""Operators of other libraries that write into what they are given, and may give nothing: what they write into is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autotp


@torch.library.custom_op("autotp_tests::norm_", mutates_args={"x"})
def norm_(x: torch.Tensor) -> None:
    x.copy_(x.softmax(-1))


@torch.library.custom_op("autotp_tests::scaled_", mutates_args={"x"})
def scaled_(x: torch.Tensor) -> torch.Tensor:
    x.div_(x.abs().max() + 1)
    return x.sum(-1)


torch.library.define("autotp_tests::named_", "(*, Tensor(a!) x) -> ()")
torch.library.impl("autotp_tests::named_", "cpu", lambda *, x: norm_(x))
torch.library.register_fake("autotp_tests::named_", lambda *, x: None)


@norm_.register_fake
def _(x: torch.Tensor) -> None:
    return None


@scaled_.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1])


class Block(nn.Module):
    def __init__(self, inner: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner = inner
        self.up, self.down, self.gain = nn.Linear(4, 10), nn.Linear(10, 4), nn.Parameter(torch.rand(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.inner(self, self.up(x).tanh()))


def values(self: Any, y: torch.Tensor) -> torch.Tensor:
    made = y.detach().clone()
    norm_(made)
    return y + made


def by_name(self: Any, y: torch.Tensor) -> torch.Tensor:
    made = y.detach().clone()
    torch.ops.autotp_tests.named_(x=made)
    return y + made


def values_that_are_sums(self: Any, y: torch.Tensor) -> torch.Tensor:
    made = self.down(y).detach().clone()
    norm_(made)
    return y + made.sum(-1, keepdim=True)


def with_a_result(self: Any, y: torch.Tensor) -> torch.Tensor:
    made = y.detach().clone()
    return y + scaled_(made)[..., None] * made


def a_parameter(self: Any, y: torch.Tensor) -> torch.Tensor:
    norm_(self.gain.data)
    return y * self.gain


def several_parameters(self: Any, y: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([self.gain.data, self.up.bias.data], 0.5)
    return y.exp() * self.gain


@pytest.mark.parametrize("objective", ["balanced", "memory"])
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize(
    "inner", [values, by_name, values_that_are_sums, with_a_result, a_parameter, several_parameters]
)
def test_what_operators_write_into_is_whole(inner: Any, tp: int, objective: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(inner) for _ in range(2))).double()
    autotp.verify(model, tp, example=(torch.randn(2, 4),), objective=objective).raise_for_failure()
