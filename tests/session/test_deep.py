"""Planning and depth: layers in nested lists, and many layers in one unit."""

from __future__ import annotations

import torch
from torch import nn

import autotp
from autotp.session.pipeline import Session
from tests.contract.parts import linear, values

WIDTH = 8


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = linear(WIDTH, 2 * WIDTH), linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).tanh())


class Nested(nn.Module):
    """Each layer is a list of a norm and a block, as many libraries write it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(WIDTH).double(), FeedForward()]) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, block in self.layers:
            x = x + block(norm(x))
        return x


class InOne(nn.Module):
    """All layers are parts of one unit: which of them may be cut is found out together."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.names = [f"layer_{i}" for i in range(layers)]
        for name in self.names:
            self.add_module(name, FeedForward())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = x + self.get_submodule(name)(x)
        return x


def test_a_stack_in_nested_lists_has_one_trace_at_any_depth() -> None:
    found = {layers: Session(Nested(layers), example=(values(2, 5, WIDTH),)) for layers in (2, 40)}
    assert [len(session.found.traced) for session in found.values()] == [1, 1]
    plans = [session.plan(2) for session in found.values()]
    assert [[len(unit.instances) for unit in plan.units] for plan in plans] == [[2], [40]]
    assert plans[0].units[0].layouts().values()
    assert len({str(plan.units[0].layouts()) for plan in plans}) == 1


def test_many_layers_of_one_unit_are_all_cut() -> None:
    model, x = InOne(24), values(2, 5, WIDTH)
    plan = autotp.plan(model, tp=2, example=(x,))
    assert sum(len(unit.layouts()) for unit in plan.units) >= 2 * 24
    autotp.verify(model, tp=2, example=(x,)).raise_for_failure()
