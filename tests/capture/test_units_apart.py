"""The parts of blocks that are taken apart: those of one place share a trace, whatever number each block gave its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.capture.units import Unit, find_units
from autotp.planner import survey as survey_module
from autotp.verify import verify

WIDTH, DEPTH = 8, 6


class Part(nn.Module):
    def __init__(self, place: int, width: int = WIDTH) -> None:
        super().__init__()
        self.place, self.up, self.down = place, nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Counting(Part):
    """Its number is one of those that it computes with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x))) / (self.place + 1)


class Block(nn.Module):
    """It cannot be traced whole: it counts its calls. Every second one has no second part."""

    def __init__(self, kind: type[Part], place: int) -> None:
        super().__init__()
        self.first, self.calls = nn.ModuleList([kind(2 * place), kind(2 * place + 1)]), 0
        self.second = kind(place) if place % 2 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for part in self.first:
            x = part(x)
        return x if self.second is None else self.second(x)


class Stack(nn.Module):
    def __init__(self, kind: type[Part]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(kind, i) for i in range(DEPTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


EXAMPLE: Any = ((torch.randn(2, 3, WIDTH, dtype=torch.float64),), {})


def test_parts_of_one_place_have_one_structure() -> None:
    split = frozenset(f"blocks.{i}" for i in range(DEPTH))
    units = find_units(Stack(Part), split)
    assert len(units) == 2 * DEPTH + DEPTH // 2
    assert len({unit.shape for unit in units}) == 1
    assert {unit.positions for unit in units} == {(("", "place"),)}


def test_blocks_that_number_their_parts_have_one_structure() -> None:
    (shape,) = {unit.shape for unit in find_units(Stack(Part)) if unit.path in ("blocks.0", "blocks.2", "blocks.4")}
    others = {unit.shape for unit in find_units(Stack(Part))} - {shape}
    assert len(others) == 1


@pytest.mark.parametrize(
    ("values", "in_step"), [([3, 5, 7], True), ([3, 5, 8], False), ([3, 5], False), ([3, 4], True)]
)
def test_numbers_in_step_say_which_block_it_is(values: list[int], in_step: bool) -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList(Part(value) for value in values)
    assert len({unit.shape for unit in find_units(model)}) == (1 if in_step else len(values))


@pytest.mark.parametrize("kind", [Part, Counting])
def test_what_is_computed_with_such_numbers_is_as_in_the_dense_model(kind: type[Part]) -> None:
    torch.manual_seed(0)
    model = Stack(kind).double()
    plan = autotp.plan(model, tp=2, example=EXAMPLE)
    assert sum(len(unit.instances) for unit in plan.units) == 2 * DEPTH + DEPTH // 2
    assert {p.placement for unit in plan.units for p in unit.parameters} == {"column", "row", "replicated"}
    verify(model, tp=2, example=EXAMPLE).raise_for_failure()


class Listed(nn.Module):
    """It counts its calls, and has its number in the first part of its list alone."""

    def __init__(self, kind: type[Part], place: int) -> None:
        super().__init__()
        self.parts, self.calls = nn.ModuleList([kind(place), Part(0)]), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for part in self.parts:
            x = part(x)
        return x


@pytest.mark.parametrize("kind", [Part, Counting])
def test_parts_in_a_list_of_each_block_may_be_numbered_as_the_blocks_are(kind: type[Part]) -> None:
    torch.manual_seed(0)
    model = Stack(kind).double()
    model.blocks = nn.ModuleList(Listed(kind, i).double() for i in range(DEPTH))
    units = find_units(model, frozenset(f"blocks.{i}" for i in range(DEPTH)))
    assert {unit.positions for unit in units if unit.path.endswith(".0")} == {(("", "place"),)}
    assert len({unit.shape for unit in units if unit.path.endswith(".0")}) == 1
    plan = autotp.plan(model, tp=2, example=EXAMPLE)
    assert sum(len(unit.instances) for unit in plan.units) == 2 * DEPTH
    assert {p.placement for unit in plan.units for p in unit.parameters} == {"column", "row", "replicated"}
    verify(model, tp=2, example=EXAMPLE).raise_for_failure()


class Numbered(nn.Linear):
    def __init__(self, place: int) -> None:
        super().__init__(WIDTH, WIDTH)
        self.place = place


def test_so_may_layers_of_one_matrix_be() -> None:
    model = Stack(Part)
    model.blocks = nn.ModuleList(
        nn.Sequential(nn.Sequential(nn.ReLU(), Numbered(i)), nn.Sequential(nn.ReLU(), Numbered(0)))
        for i in range(DEPTH)
    )
    split = frozenset(f"blocks.{i}{inner}" for i in range(DEPTH) for inner in ("", ".0", ".1"))
    units = find_units(model, split)
    assert [unit.path for unit in units] == [f"blocks.{i}.{j}.1" for i in range(DEPTH) for j in range(2)]
    assert len({unit.shape for unit in units if unit.path.endswith(".0.1")}) == 1


def test_widths_that_grow_from_stage_to_stage_are_no_places() -> None:
    model = nn.Module()
    model.stages = nn.ModuleList(nn.Sequential(*map(Part, each, each)) for each in ([8, 8, 16], [16, 16], [24, 24]))
    units = {unit.path: unit for unit in find_units(model, frozenset(f"stages.{i}" for i in range(3)))}
    assert {unit.positions for unit in units.values()} == {()}
    assert units["stages.0.2"].shape == units["stages.1.0"].shape == units["stages.1.1"].shape
    assert len({unit.shape for unit in units.values()}) == 3


class Asking(nn.Module):
    """It cannot even run on fake tensors: it looks at a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Part(0), Part(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(-x if x.sum() > 1e9 else x))


def test_what_runs_is_traced_once_and_after_all_that_does_not_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    stack = Stack(Part)
    stack.blocks = nn.ModuleList(Asking() for _ in range(3))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), stack, nn.Linear(WIDTH, WIDTH)).double()
    traced = list[str]()

    def trace(module: nn.Module, unit: Unit, *given: Any, **options: Any) -> Any:
        traced.append(unit.path)
        return own(module, unit, *given, **options)

    own = survey_module.trace
    monkeypatch.setattr(survey_module, "trace", trace)
    plan = autotp.plan(model, tp=2, example=EXAMPLE)
    monkeypatch.undo()
    assert sorted(traced) == ["0", "1.blocks.0.first"]
    assert {p.placement for unit in plan.units for p in unit.parameters} >= {"column", "row"}
    verify(model, tp=2, example=EXAMPLE).raise_for_failure()
