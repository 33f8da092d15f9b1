"""Modules within the stand-ins of later blocks are made when the Python around the blocks asks for them, and not before."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import nn

from autotp.axes.function import FunctionRule
from autotp.axes.rules import function_rules
from autotp.capture.later import Later, pairs
from autotp.capture.owners import package_of
from autotp.capture.record import record
from autotp.capture.recorder import Recorder
from autotp.capture.units import find_units
from autotp.errors import TraceError
from autotp.session.study import Study
from autotp.verify import verify

DEPTH, WIDTH = 5, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """Its own Python looks into its blocks, if it is curious."""

    def __init__(self, curious: bool) -> None:
        super().__init__()
        self.curious, self.blocks = curious, nn.ModuleList(Block() for _ in range(DEPTH))
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.curious:
            inner = self.blocks[-1].up
            x = x / sum(1 for _ in self.modules()) + inner.out_features + len(self.blocks[2]._modules)
            assert "down" in self.blocks[1]._modules
            assert isinstance(self.blocks[3].down, nn.Linear)
        for block in self.blocks:
            x = block(x)
        return x


def filled() -> Later:
    return Later(lambda: OrderedDict(a=nn.Identity(), b=None), "ab")


@pytest.mark.parametrize(
    "ask",
    [
        len,
        list,
        dict,
        bool,
        repr,
        copy.copy,
        reversed,
        OrderedDict,
        lambda held: held["a"],
        lambda held: held.get("a"),
        lambda held: [*held.items(), *held.keys(), *held.values()],
        lambda held: held == {},
        lambda held: held.update(c=None),
        lambda held: {**held},
        lambda held: held.__ior__({"c": None}),
        lambda held: {} | held,
        lambda held: held | {},
        lambda held: held.copy()["a"],
    ],
)
def test_every_question_makes_them(ask) -> None:  # type: ignore[no-untyped-def]
    held = filled()
    assert not held.is_made
    ask(held)
    assert held.is_made
    assert list(held)[:2] == ["a", "b"]
    assert list(copy.deepcopy(held)) == list(held)


def test_whether_a_name_is_among_them_is_known_before() -> None:
    held = filled()
    assert "a" in held
    assert "c" not in held
    assert not held.is_made
    held["c"] = None
    assert "c" in held


def test_what_is_not_made_is_left_out() -> None:
    live = Stack(False)
    twin = copy.copy(live)
    blocks = copy.copy(live.blocks)
    twin.__dict__["_modules"] = OrderedDict(blocks=blocks)
    hidden = copy.copy(live.blocks[1])
    hidden.__dict__["_modules"] = Later(lambda: OrderedDict(live.blocks[1]._modules), live.blocks[1]._modules)
    blocks.__dict__["_modules"] = OrderedDict(list(live.blocks._modules.items())[:1], **{"1": hidden})
    found = [path for path, _, _ in pairs(twin, live)]
    assert found == ["", "blocks", "blocks.0", "blocks.0.up", "blocks.0.down", "blocks.1"]
    len(hidden._modules)
    assert [path for path, _, _ in pairs(twin, live)] == [*found, "blocks.1.up", "blocks.1.down"]


@pytest.mark.parametrize("curious", [False, True])
def test_the_python_around_blocks_finds_all_of_them(curious: bool) -> None:
    model = Stack(curious)
    recording = record(model, find_units(model), (torch.randn(2, 3, WIDTH),), {})
    assert len(recording.called) == DEPTH
    assert recording.on_fakes
    assert not recording.failed
    assert not recording.used_outside
    assert recording.result.shape == (2, 3, WIDTH)


def test_a_model_that_looks_into_its_blocks_is_exact() -> None:
    torch.manual_seed(0)
    example = ((torch.randn(2, 3, WIDTH, dtype=torch.float64),), {})
    model = Stack(True).double()
    plan = Study(model, example=example).plan(2)
    (block,) = plan.units
    assert len(block.instances) == DEPTH
    assert {p.placement for p in block.parameters} == {"column", "row", "replicated"}
    verify(model, tp=2, example=example).raise_for_failure()


class Noting(Stack):
    """Its own Python writes into what its blocks keep, at several depths."""

    def __init__(self) -> None:
        super().__init__(False)
        for block in self.blocks:
            block.notes, block.up.notes, block.down.table = [], [], {"calls": [0]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            block.notes.append(len(x))
            block.up.notes.append(len(x))
            block.down.table["calls"].append(len(x))
            block.down.was_called = True
        return super().forward(x)


def test_what_a_recorded_run_writes_into_blocks_is_put_back() -> None:
    model = Noting()
    recording = record(model, find_units(model), (torch.randn(2, 3, WIDTH),), {})
    assert len(recording.called) == DEPTH
    for block in model.blocks:
        assert block.notes == []
        assert block.up.notes == []
        assert block.down.table == {"calls": [0]}
        assert not hasattr(block.down, "was_called")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the units whose insides are made."""
    paths: list[str] = []
    plain = Recorder._inside_of

    def inside_of(self, unit, *rest):  # type: ignore[no-untyped-def]
        paths.append(unit.path)
        return plain(self, unit, *rest)

    monkeypatch.setattr(Recorder, "_inside_of", inside_of)
    return paths


@pytest.mark.parametrize("curious", [False, True])
def test_a_survey_makes_none_that_nobody_asks_for(curious: bool, made: list[str]) -> None:
    model = Stack(curious)
    record(model, find_units(model), (torch.randn(2, 3, WIDTH),), {}, function_rules())
    assert sorted(made) == ([f"blocks.{i}" for i in range(1, DEPTH)] if curious else [])


DIMS = (("a",), ("b",), ("c",))


def made_kernel() -> tuple[Callable[[torch.Tensor], torch.Tensor]]:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    return (kernel,)


KERNELS = made_kernel()  # in a tuple, where none is put in its place


class Keeping(Stack):
    """Modules within its blocks keep a function, and its own Python calls that of the last one, unless it is the real one."""

    def __init__(self) -> None:
        super().__init__(False)
        for block in self.blocks:
            block.up.function = KERNELS[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function = self.blocks[-1].up.function
        if function is KERNELS[0]:
            raise RuntimeError("it cannot be called without a device")
        return super().forward(x) + function(x)


def test_functions_with_rules_that_they_keep_are_called_for_their_shapes(made: list[str]) -> None:
    model = Keeping()
    given = model, find_units(model), (torch.randn(2, 3, WIDTH),), {}
    rule = FunctionRule({"x": DIMS}, (DIMS,), frozenset(), owner=package_of(KERNELS[0]))
    recording = record(*given, {"kernel": rule})
    assert recording.on_fakes
    assert made == [f"blocks.{DEPTH - 1}"]
    assert model.blocks[-1].up.function is KERNELS[0]
    with pytest.raises(TraceError, match="without a device"):
        record(*given)
