"""Models whose modules convert themselves as they run, most of them to the type that they have."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import autotp
from autotp.capture.contract.conversions import needless_conversions
from autotp.capture.record import record
from autotp.capture.units import find_units
from autotp.verify import verify

WIDTH = 8
EXAMPLE = ((torch.randn(2, 3, WIDTH, dtype=torch.float64),), {})


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier, self.dtype = nn.Linear(WIDTH, 1), torch.float64

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.seen = x.dtype
        self.classifier = self.classifier.to(self.dtype)
        logits = self.classifier(x.to(self.dtype))
        return logits.sigmoid().to(self.seen), logits.argmax(-1), logits


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.mlp = Router(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, _, _ = self.router(x)
        return x + self.mlp(x) * share


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_a_run_gets_past_a_conversion_that_changes_nothing() -> None:
    model = Stack().double()
    before = {name: (parameter, parameter.dtype) for name, parameter in model.named_parameters()}
    assert not record(model, find_units(model), *EXAMPLE).failed
    assert before == {name: (parameter, parameter.dtype) for name, parameter in model.named_parameters()}


def test_what_is_beside_a_router_that_converts_itself_is_cut() -> None:
    model = Stack().double()
    plan = autotp.plan(model, tp=2, example=EXAMPLE)
    cut = {
        p.name
        for unit in plan.units
        for p in unit.parameters
        if p.placement != "replicated" and ".mlp" in unit.instances[0]
    }
    assert {"up.weight", "down.weight"} <= cut
    verify(copy.deepcopy(model), tp=2, example=EXAMPLE).raise_for_failure()


def test_only_the_same_memory_of_the_same_kind_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped: list[torch.Tensor] = []

    def swap(one: torch.Tensor, other: torch.Tensor) -> None:
        swapped.append(other)

    monkeypatch.setattr(torch.utils, "swap_tensors", swap)
    with FakeTensorMode(), needless_conversions():
        weight = nn.Parameter(torch.ones(2, 2))
        others = [
            nn.Parameter(torch.ones(2, 2)),
            nn.Parameter(weight.detach(), requires_grad=False),
            nn.Parameter(weight.detach().t()),
            nn.Parameter(weight.detach()[:1]),
            nn.Parameter(weight.detach()[1:]),
            nn.Parameter(weight.detach().view(torch.int32), requires_grad=False),
        ]
        torch.utils.swap_tensors(weight, nn.Parameter(weight.detach()))
        assert not swapped
        for other in others:
            torch.utils.swap_tensors(weight, other)
    assert list(map(id, swapped)) == list(map(id, others))
    assert torch.utils.swap_tensors is swap
