"""Blocks that write into their own weights, element by element: each rank writes its part, and what is padding stays zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.verify.verifier import Verifier

HIDDEN, INNER = 16, 50  # of which five ranks have equal parts, and three have not


class Block(nn.Module):
    """A gated MLP that writes into its weights before it reads them, and has a buffer."""

    def __init__(self, write: Callable[[Any, torch.Tensor], None]) -> None:
        super().__init__()
        self.write = write
        self.gate, self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
        self.gain = nn.Parameter(torch.randn(INNER))
        self.register_buffer("seen", torch.randn(INNER))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(self, x)
        return x + self.down((self.gate(x) * self.up(x)).tanh() * self.gain + self.seen * self.up(x))


class Net(nn.Module):
    def __init__(self, write: Callable[[Any, torch.Tensor], None]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(write) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def clipped(self: Any, x: torch.Tensor) -> None:
    self.up.weight.data.clamp_(-0.1, 0.1)
    self.down.weight.data.mul_(0.9)
    self.down.bias.data.add_(0.1)


def averaged(self: Any, x: torch.Tensor) -> None:
    self.up.weight.data.lerp_(self.gate.weight.data, 0.1)


def copied(self: Any, x: torch.Tensor) -> None:
    self.up.weight.data.copy_(self.gate.weight)


def not_zero_in_padding(self: Any, x: torch.Tensor) -> None:
    self.gain.data.exp_().clamp_(0.1, 1.5)
    self.up.bias.data.fill_(0.5)


def not_finite_in_padding(self: Any, x: torch.Tensor) -> None:
    self.gain.data.reciprocal_().abs_().clamp_(0.1, 3.0)


def seen_values_averaged(self: Any, x: torch.Tensor) -> None:
    self.gain.data.mul_(0.5).add_(self.up(x).detach().mean((0, 1)), alpha=0.1)


def a_buffer_beside_it(self: Any, x: torch.Tensor) -> None:
    self.seen.mul_(0.5).add_(self.up(x).detach().mean((0, 1)), alpha=0.1)
    self.gain.data.mul_(self.seen)


def without_gradients(self: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        self.up.weight.clamp_(-0.1, 0.1)


def normed(self: Any, x: torch.Tensor) -> None:
    self.up.weight.data.div_(self.up.weight.detach().norm(dim=0, keepdim=True))


def part_of_it(self: Any, x: torch.Tensor) -> None:
    self.gain.data[3:].mul_(0.5)


WRITES = [clipped, averaged, copied, not_zero_in_padding, not_finite_in_padding, seen_values_averaged]
OTHERS = [a_buffer_beside_it, without_gradients, normed, part_of_it]


@pytest.mark.parametrize("tp", [3, 5])
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_each_rank_writes_its_part(write: Callable[[Any, torch.Tensor], None], tp: int) -> None:
    torch.manual_seed(0)
    verifier = Verifier(Net(write).double(), example=(torch.randn(2, 3, HIDDEN),))
    never = Verifier(Net(lambda self, x: None).double(), example=(torch.randn(2, 3, HIDDEN),))
    report = verifier.verify(tp)
    report.raise_for_failure()
    assert report.elements == never.plan(tp).elements()
    assert report.planned == never.verify(tp).planned


@pytest.mark.parametrize("tp", [3, 5])
@pytest.mark.parametrize("write", OTHERS, ids=lambda write: write.__name__)
def test_what_it_writes_otherwise_is_right_too(write: Callable[[Any, torch.Tensor], None], tp: int) -> None:
    torch.manual_seed(0)
    autotp.verify(Net(write).double(), tp, example=(torch.randn(2, 3, HIDDEN),)).raise_for_failure()
