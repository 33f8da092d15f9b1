"""Traces that hold for the next survey, in which some other units are taken apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.capture.record import record
from autotp.capture.trace import trace
from autotp.capture.units import Unit, find_units
from autotp.capture.varying import VaryingDims, sized_site
from autotp.planner import survey as survey_module
from autotp.planner.traces import Traces
from autotp.verify import verify

WIDTH = 8
EXAMPLE: Any = ((torch.randn(2, 3, WIDTH, dtype=torch.float64),), {})


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.up, self.down = 2.0, nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x))) * self.scale


class Counting(nn.Module):
    """It cannot be traced whole: it counts its calls."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last, self.calls = inner, Part(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.last(self.inner(x))


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_what_stays_a_unit_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block within a block, both of which count, takes three surveys."""
    torch.manual_seed(0)
    model = Stack(Part(), Counting(Counting(Part())), Part()).double()
    traced = Counter[str]()

    def tracing(module: nn.Module, unit: Unit, *given: Any, **options: Any) -> Any:
        traced[unit.path] += 1
        return trace(module, unit, *given, **options)

    monkeypatch.setattr(survey_module, "trace", tracing)
    plan = autotp.plan(model, tp=2, example=EXAMPLE)
    monkeypatch.undo()
    assert traced["blocks.0"] == traced["blocks.1"] == traced["blocks.1.inner"] == 1
    assert max(traced.values()) == 1
    assert sum(len(unit.instances) for unit in plan.units) == 5
    assert {p.placement for unit in plan.units for p in unit.parameters} == {"column", "row", "replicated"}
    verify(model, tp=2, example=EXAMPLE).raise_for_failure()


def _hook(part: Part) -> None:
    part.down.register_forward_hook(lambda *given: None)


CHANGES: dict[str, Callable[[Part], object]] = {
    "a number that it reads": lambda part: setattr(part, "scale", 3.0),
    "a parameter of another type": lambda part: part.up.float(),
    "another parameter's size": lambda part: setattr(part, "up", nn.Linear(WIDTH, 2 * WIDTH).double()),
    "one parameter in two places": lambda part: setattr(part.down, "weight", part.up.weight),
    "a hook": _hook,
    "another function": lambda part: setattr(part.down, "forward", part.down.forward),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_trace_does_not_hold_for_what_is_not_as_it_was(change: Callable[[Part], object]) -> None:
    known, part, given = _known()
    assert known.find(part, *given) is not None
    change(part)
    assert known.find(part, *given) is None


def _known() -> tuple[Traces, Part, tuple[Any, ...]]:
    model = Stack(Part(), Part()).double()
    unit, _ = find_units(model)
    part, varying, known = model.blocks[0], VaryingDims(), Traces()
    assert isinstance(part, Part)
    site = sized_site(part, *record(model, find_units(model), *EXAMPLE).calls[unit.shape])
    varying.observe(site)
    known.note(unit, trace(part, unit, site, varying), varying)
    return known, part, (unit, site, varying, frozenset())


def test_a_trace_does_not_hold_for_another_call() -> None:
    known, part, (unit, site, varying, _) = _known()
    unread = known.find(part, replace(unit, shape=7), site, varying, frozenset([0]))
    assert unread is not None
    assert unread.unread == {0}
    for other in (replace(unit, path="blocks.1"), replace(unit, positions=(("", "scale"),))):
        assert known.find(part, other, site, varying, frozenset()) is None
    for shape, dtype in (((2, 5), torch.float64), ((2, 3), torch.float32)):
        (call,) = [sized_site(part, (torch.randn(*shape, WIDTH, dtype=dtype),), {})]
        seen = VaryingDims()
        seen.observe(call)
        assert known.find(part, unit, call, seen, frozenset()) is None
        seen = VaryingDims()
        seen.observe(site)
        assert known.find(part, unit, call, seen, frozenset()) is None
    more = VaryingDims()
    more.observe(site)
    more.observe(sized_site(part, (torch.randn(2, 5, WIDTH, dtype=torch.float64),), {}))
    assert known.find(part, unit, site, more, frozenset()) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call = sized_site(part, (site.tensors[0],), {})
        assert known.find(part, unit, call, varying, frozenset()) is None


class Branching(Part):
    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.place > 1 else super().forward(-x)


def test_a_trace_does_not_hold_for_another_place() -> None:
    model = Stack(*map(Branching, range(3))).double()
    unit = find_units(model)[0]
    part, varying, known = model.blocks[0], VaryingDims(), Traces()
    site = sized_site(part, *EXAMPLE)
    varying.observe(site)
    known.note(unit, trace(part, unit, site, varying), varying)
    assert unit.positions == (("", "place"),)
    assert known.find(part, unit, site, varying, frozenset()) is not None
    part.place = 2
    assert known.find(part, unit, site, varying, frozenset()) is None
