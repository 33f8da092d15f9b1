"""Units are taken apart as one level after the other would say, and the whole model runs once for all levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.capture import record as record_module
from autotp.capture.record import record
from autotp.capture.recorder import Recorder
from autotp.capture.trace import trace
from autotp.capture.units import Unit, find_units
from autotp.errors import TraceError
from autotp.planner import survey as survey_module
from autotp.planner.plan import Plan
from autotp.planner.taking_apart import Alone, take_apart
from autotp.verify import verify

WIDTH = 8
EXAMPLE: Any = ((torch.randn(2, 3, WIDTH, dtype=torch.float64),), {})


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Around(nn.Module):
    """Something around others, with a part of its own."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = nn.ModuleDict({f"of_{i}": each for i, each in enumerate(inner)}), Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.inner.values():
            x = each(x)
        return self.last(x)


class Counting(Around):
    """It cannot be traced whole: it counts its calls."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Choosing(Around):
    """It cannot run without values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 1e3 else super().forward(x * 0.5)


class Told(Around):
    """What is in it goes by a word that it is given."""

    def forward(self, x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        return super().forward(super().forward(x) if twice else x)


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x, twice=number > 0) if isinstance(block, Told) else block(x)
        return x


MODELS = {
    "three levels": lambda: Stack(Part(), Counting(Counting(Counting(Part()))), Part()),
    "values at the lowest": lambda: Stack(Around(Around(Choosing(Part()))), Part()),
    "values at all levels": lambda: Stack(Choosing(Choosing(Choosing(Part()))), Part()),
    "values and counts in turn": lambda: Stack(Counting(Choosing(Counting(Part(), Choosing(Part())))), Part()),
    "several of one structure": lambda: Stack(*(Counting(Around(Counting(Part()))) for _ in range(3)), Part()),
    "two of one structure in one": lambda: Stack(Counting(Counting(Part()), Counting(Part()), Part()), Part()),
    "siblings that are called in several ways": lambda: Stack(*(Told(Counting(Counting(Part()))) for _ in range(3))),
    "the model itself": lambda: Counting(Counting(Counting(Part()))),
}


def planned(name: str, device: str = "cpu") -> Plan:
    torch.manual_seed(0)
    return autotp.plan(MODELS[name]().double().to(device), tp=2, example=EXAMPLE)


WITHOUT_WEIGHTS = [name for name in MODELS if "values" in name]


@pytest.mark.parametrize(
    ("name", "device"), [*((name, "cpu") for name in MODELS), *((name, "meta") for name in WITHOUT_WEIGHTS)]
)
def test_the_plan_is_the_one_of_level_by_level(monkeypatch: pytest.MonkeyPatch, name: str, device: str) -> None:
    own = planned(name, device)
    assert {p.placement for unit in own.units for p in unit.parameters} >= {"column", "row"}

    def level_by_level(*given: Any, foreseeing: bool) -> Any:
        return take_apart(*given, foreseeing=False)

    monkeypatch.setattr(survey_module, "take_apart", level_by_level)
    assert own.to_json() == planned(name, device).to_json()


@pytest.mark.parametrize("name", MODELS)
def test_what_is_taken_apart_is_exact(name: str) -> None:
    torch.manual_seed(0)
    verify(MODELS[name]().double(), tp=2, example=EXAMPLE).raise_for_failure()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which recordings were made: of a whole model, or of a module alone."""
    made: list[str] = []

    def recording(model: nn.Module, *given: Any, **options: Any) -> Any:
        made.append("alone" if isinstance(model, Alone) else "whole")
        return record(model, *given, **options)

    monkeypatch.setattr(survey_module, "record", recording)
    return made


def test_what_needs_values_is_run_on_fakes_no_more_than_it_takes_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that needs values is one alone, until it is Python around others: from then on no run is on fakes."""
    ways, traced = list[tuple[bool, dict[str, bool]]](), Counter[str]()

    def recorder(model: nn.Module, *given: Any, **how: bool) -> Recorder:
        ways.append((isinstance(model, Alone), how))
        return Recorder(model, *given, **how)

    def tracing(module: nn.Module, unit: Unit, *given: Any, **options: Any) -> Any:
        traced[unit.path] += 1
        return trace(module, unit, *given, **options)

    monkeypatch.setattr(record_module, "Recorder", recorder)
    monkeypatch.setattr(survey_module, "trace", tracing)
    planned("values at the lowest", "meta")
    whole = [how for alone, how in ways if not alone]
    assert whole == [{}, *[{"guess": True}, {"guess": False}] * 1, {"guess": True}]
    assert max(traced.values()) == 1


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_the_whole_model_runs_twice_for_any_number_of_levels(runs: list[str], depth: int) -> None:
    block: nn.Module = Part()
    for _ in range(depth):
        block = Counting(block)
    autotp.plan(Stack(block, Part()).double(), tp=2, example=EXAMPLE)
    assert runs.count("whole") == 2 * 2  # with two examples each
    assert runs.count("alone") == depth * 2


def test_one_of_each_structure_is_surveyed_alone(runs: list[str]) -> None:
    plan = planned("several of one structure")
    assert runs.count("alone") == 3 * 2
    assert sum(len(unit.instances) for unit in plan.units) == 3 * 4 + 1


class Repeated(Stack):
    """Each row is repeated as often as values say; what follows is given that, and perhaps the rows as well."""

    also = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *blocks = self.blocks
        rows = first(x)
        x = rows.repeat_interleave(rows.sum((1, 2)).abs().long() + 1, 0)
        for block in blocks:
            x = block(x, rows) if self.also else block(x)
        return x


class Beside(Around):
    """It goes through rows of both kinds."""

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.last(rows).sum()


@pytest.mark.parametrize("also", [False, True])
def test_what_is_given_nothing_of_a_known_size_is_not_taken_apart(runs: list[str], also: bool) -> None:
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Repeated(Part(), (Beside if also else Around)(Part()))
    model.also = also
    plan = autotp.plan(model.double(), tp=2, example=EXAMPLE)
    assert bool(runs.count("alone")) is also
    reasons = {left.name: left.reason for left in plan.outside}
    assert "whose size depends on values" in reasons["blocks.1.inner.of_0.up.weight"]


def test_what_is_in_it_says_why_by_itself() -> None:
    class Scaled(Counting):
        def __init__(self, *inner: nn.Module) -> None:
            super().__init__(*inner)
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * self.scale)

    plan = autotp.plan(Stack(Counting(Counting(Scaled(Part()))), Part()).double(), tp=2, example=EXAMPLE)
    (left,) = [each for each in plan.outside if each.name.endswith("scale")]
    assert "it changes the block.calls" in left.reason


def test_a_module_alone_is_called_as_it_is_in_the_model() -> None:
    model = Stack(Around(Part()), Part())
    unit = next(each for each in find_units(model) if each.path == "blocks.0")
    alone, x = Alone(model, unit), torch.randn(2, WIDTH)
    assert unit.module(alone) is model.blocks[0]
    assert {name for name, _ in alone.named_parameters()} < {name for name, _ in model.named_parameters()}
    expected = model.blocks[0](x)
    model.blocks[0].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    assert torch.equal(alone(x), expected)  # a call was recorded as hooks have left it


@dataclass
class Scripted:
    """A survey of which it is known what fails in it."""

    taken: frozenset[str]
    fails: Mapping[frozenset[str], Set[str]]
    foresees: Mapping[str, str] = field(default_factory=dict)
    asked: list[Set[str]] = field(default_factory=list)
    broken: frozenset[int] = frozenset()
    unsized: set[int] = field(default_factory=set)
    model: nn.Module = field(default_factory=lambda: Stack(Around(Around(Part())), Around(Part())))

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(find_units(self.model, self.taken))

    def run(self, known: Set[str]) -> Mapping[str, str]:
        if self.taken not in self.fails:
            raise TraceError("it cannot run")
        self.broken = frozenset(unit.shape for unit in self.units if unit.path in self.fails[self.taken])
        return dict.fromkeys(self.fails[self.taken], "it fails")

    def foreseen(self, taken: Set[str], split: frozenset[str]) -> Mapping[str, str]:
        self.asked.append(taken)
        return self.foresees if "blocks.0" in taken else {}


def _scripted(made: list[frozenset[str]], taken: frozenset[str], earlier: object, **script: Any) -> Scripted:
    made.append(taken)
    return Scripted(taken, **script)


FIRST, INNER = frozenset(["blocks.0"]), frozenset(["blocks.0", "blocks.0.inner.of_0"])


def test_what_was_foreseen_and_cannot_run_is_taken_apart_level_by_level() -> None:
    last = frozenset(["blocks.0", "blocks.1"])
    fails: dict[frozenset[str], Set[str]] = {frozenset(): FIRST, FIRST: last - FIRST, last: set()}
    made, asked = list[frozenset[str]](), list[Set[str]]()
    script = partial(_scripted, made, fails=fails, foresees={"blocks.0.inner.of_0": "foreseen"}, asked=asked)
    found, split, failures = take_apart(script, foreseeing=True)
    assert made == [frozenset(), INNER, FIRST, last]
    assert (found.taken, split, failures) == (last, last, dict.fromkeys(sorted(last), "it fails"))
    assert asked == [FIRST]


def test_what_cannot_run_without_its_parts_stays_together() -> None:
    fails: dict[frozenset[str], Set[str]] = {frozenset(): FIRST, FIRST: INNER - FIRST}
    made: list[frozenset[str]] = []
    found, split, failures = take_apart(partial(_scripted, made, fails=fails), foreseeing=True)
    assert made == [frozenset(), FIRST, INNER, FIRST]
    assert (found.taken, split) == (FIRST, FIRST)
    assert failures.keys() == INNER


def test_what_was_foreseen_and_runs_says_why() -> None:
    fails: dict[frozenset[str], Set[str]] = {frozenset(): FIRST, INNER: set()}
    made: list[frozenset[str]] = []
    script = partial(_scripted, made, fails=fails, foresees={"blocks.0.inner.of_0": "foreseen"})
    found, split, failures = take_apart(script, foreseeing=True)
    assert made == [frozenset(), INNER]
    assert (found.taken, split, failures) == (INNER, INNER, {"blocks.0": "it fails", "blocks.0.inner.of_0": "foreseen"})


def test_a_model_that_never_runs_has_the_error_as_its_reason() -> None:
    found, split, failures = take_apart(partial(_scripted, [], fails={}), foreseeing=True)
    assert not split
    assert failures == {unit.path: "it cannot run" for unit in found.units}
