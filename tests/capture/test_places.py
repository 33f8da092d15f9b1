"""Blocks that are told which of their siblings they are have one trace, unless what they do depends on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.capture.record import record
from autotp.capture.units import find_units
from autotp.verify import verify

WIDTH, DEPTH = 8, 4


class Scaled(nn.Module):
    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, place: int) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x))) * (place + 1)


class Choosing(Scaled):
    def forward(self, x: torch.Tensor, place: int) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        return x - y if place == 2 else x + y


class Longer(Scaled):
    """The first gives twice as many positions as it gets."""

    def forward(self, x: torch.Tensor, place: int) -> torch.Tensor:
        x = x + self.down(torch.relu(self.up(x)))
        return torch.cat([x, x], 1) if place == 0 else x


class Adapted(Scaled):
    """All blocks have the adapters of all: each reads its own."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.adapters = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(DEPTH + 1))

    def forward(self, x: torch.Tensor, place: int) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x) + self.adapters[place](x)))


class Choosy(Adapted):
    """As these, by the number that it has itself."""

    def forward(self, x: torch.Tensor, place: int) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x) + self.adapters[self.place](x)))


class Stack(nn.Module):
    def __init__(self, kind: type[Scaled], shift: int = 0) -> None:
        super().__init__()
        self.blocks, self.shift = nn.ModuleList(kind(i) for i in range(DEPTH)), shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x, place + self.shift)
        return x


def example(model: nn.Module) -> Any:
    return ((torch.randn(2, 3, WIDTH, dtype=next(model.parameters()).dtype),), {})


def test_a_place_is_no_other_call() -> None:
    model = Stack(Scaled)
    assert not record(model, find_units(model), *example(model)).resized
    assert sorted(record(model, find_units(model), *example(model)).told) == [f"blocks.{i}" for i in range(DEPTH)]
    model = Stack(Scaled, shift=1)  # of the next one
    assert sorted(record(model, find_units(model), *example(model)).resized) == [f"blocks.{i}" for i in range(1, DEPTH)]


class Alike(Stack):
    """The number is no place, though it is that of one of the blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, self.shift)
        return x


@pytest.mark.parametrize("number", range(DEPTH))
def test_a_number_that_all_are_called_with_is_no_place(number: int) -> None:
    model = Alike(Scaled, number)
    recording = record(model, find_units(model), *example(model))
    assert not recording.resized
    assert not recording.told


@pytest.mark.parametrize("kind", [Scaled, Choosing, Longer])
@pytest.mark.parametrize("shift", [0, 1])
def test_what_depends_on_the_place_is_as_in_the_dense_model(kind: type[Scaled], shift: int) -> None:
    torch.manual_seed(0)
    model = Stack(kind, shift).double()
    plan = autotp.plan(model, tp=2, example=example(model))
    assert sum(len(unit.instances) for unit in plan.units) == DEPTH
    if not shift and kind is not Longer:
        assert len(plan.units) == 1
    assert {p.placement for unit in plan.units for p in unit.parameters} == {"column", "row", "replicated"}
    verify(model, tp=2, example=example(model)).raise_for_failure()


@pytest.mark.parametrize("kind", [Adapted, Choosy])
@pytest.mark.parametrize("shift", [0, 1])
def test_blocks_that_read_parameters_of_their_place_are_planned_each_by_itself(kind: type[Scaled], shift: int) -> None:
    torch.manual_seed(0)
    model = Stack(kind, shift).double()
    plan = autotp.plan(model, tp=2, example=example(model))
    first = shift if kind is Adapted else 0
    for unit in plan.units:
        (path,) = unit.instances
        place = int(path.removeprefix("blocks."))
        cut = {p.name for p in unit.parameters if p.placement == "column"}
        own = f"adapters.{place + first}"
        assert cut == {"up.weight", "up.bias", f"{own}.weight", f"{own}.bias"}
    verify(model, tp=2, example=example(model)).raise_for_failure()


class Backwards(Stack):
    """The last block is called first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, block in reversed(list(enumerate(self.blocks))):
            x = block(x, place)
        return x


def test_each_block_is_planned_from_its_own_call_whatever_their_order() -> None:
    torch.manual_seed(0)
    model = Backwards(Adapted).double()
    plan = autotp.plan(model, tp=2, example=example(model))
    assert len(plan.units) == DEPTH
    for unit in plan.units:
        own = f"adapters.{unit.instances[0].removeprefix('blocks.')}"
        assert {p.name for p in unit.parameters if p.placement == "column"} == {
            "up.weight",
            "up.bias",
            f"{own}.weight",
            f"{own}.bias",
        }
    verify(model, tp=2, example=example(model)).raise_for_failure()
