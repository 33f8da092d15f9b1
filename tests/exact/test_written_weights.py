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


@pytest.mark.sample(6)
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


def total(self: Any) -> torch.Tensor:
    return self.gain.data.mean()


class Mixed(nn.Module):
    """Weights that are written with what is made of others: sums over what is cut, transposed ones, parts along another dim."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        super().__init__()
        self.write = write
        self.up, self.down = nn.Linear(6, 10, bias=False), nn.Linear(10, 6, bias=False)
        self.gain, self.square = nn.Parameter(torch.rand(10) + 0.5), nn.Parameter(torch.randn(10, 10) * 0.3)
        self.scale, self.small = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(self)
        inner = (self.up(x) * self.gain).tanh()
        return (x + self.down(inner + inner @ self.square)) * self.scale + self.small.sum()


MIXED: dict[str, Callable[[Any], Any]] = {
    "a sum into a whole one": lambda self: self.small.data.mul_(total(self)),
    "a sum added to a whole one": lambda self: self.small.data.add_(total(self)),
    "a product over what is cut": lambda self: self.scale.data.mul_(self.up.weight.data.t() @ self.gain.data),
    "a mean of rows": lambda self: self.scale.data.lerp_(self.up.weight.data.mean(0), 0.1),
    "along the other dim": lambda self: self.square.data.mul_(self.gain.data),
    "both dims": lambda self: self.square.data.mul_(self.gain.data).div_(self.gain.data[:, None]),
    "transposed": lambda self: self.down.weight.data.copy_(self.up.weight.data.mul_(0.5).t()),
    "transposed and copied": lambda self: self.down.weight.data.copy_(
        self.up.weight.data.clamp_(-0.1, 0.1).t().clone()
    ),
}


@pytest.mark.parametrize("objective", ["balanced", "memory"])
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("way", MIXED)
def test_weights_written_with_others(way: str, tp: int, objective: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Mixed(MIXED[way]) for _ in range(2))).double()
    autotp.verify(model, tp, example=(torch.randn(2, 3, 6),), objective=objective).raise_for_failure()


class Twice(nn.Module):
    """A weight that is written, and read by parts and whole."""

    def __init__(self, read: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.read, self.weight = read, nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.mul_(0.5)
        return x + self.read(x, self.weight)


READS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softmax first": lambda x, w: (x @ w.softmax(0).t()) @ w,
    "softmax last": lambda x, w: (x @ w.t()) @ w.softmax(0),
    "sums so far": lambda x, w: (x @ w.cumsum(0).t()) @ w,
    "both sides": lambda x, w: x @ w @ w,
}


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("way", READS)
def test_a_written_weight_is_read_whole_and_by_parts(way: str, tp: int) -> None:
    torch.manual_seed(0)
    model, example = nn.Sequential(Twice(READS[way])).double(), (torch.randn(2, 6),)
    autotp.verify(model, tp, example=example, objective="memory").raise_for_failure()
