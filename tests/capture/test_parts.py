"""Modules within units of a recorded run: what one gave is given again for the same call, to whatever like it is called so."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from autotp.capture.record import record
from autotp.capture.recorded import Recording
from autotp.capture.recorder import Recorder
from autotp.capture.units import find_units
from autotp.session.study import Study
from autotp.verify import verify

WIDTH, DEPTH = 8, 4
X = torch.randn(2, 3, WIDTH)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Turned(Mlp):
    """What it gives is looked at in another order, which a copy in the usual order could not be."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).transpose(0, 1)


class Counted(Mlp):
    """Gives more with each call."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x).repeat(1, 1, self.calls)


class Block(nn.Module):
    """Called with everything that all blocks before it gave."""

    def __init__(self, kind: type[Mlp], number: int) -> None:
        super().__init__()
        self.mlp, self.kept, self.place = kind(), nn.Linear(WIDTH, WIDTH), Place(number)

    def forward(self, x: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.mlp(x)
        x = x + made.transpose(0, 1).view(-1, WIDTH).view(x.shape) if made.shape[0] != x.shape[0] else x + made
        return x, torch.cat([before, self.place(self.kept(x)).unsqueeze(2)], 2)


class Place(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (self.number + 1)


class Stack(nn.Module):
    def __init__(self, kind: type[Mlp], last: type[Mlp] | None = None) -> None:
        super().__init__()
        kinds = [*[kind] * (DEPTH - 1), last or kind]
        self.blocks = nn.ModuleList(Block(each, i) for i, each in enumerate(kinds))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = x[:, :, None]
        for block in self.blocks:
            x, before = block(x, before)
        return x + before.mean(2)


def recorded(model: nn.Module, x: torch.Tensor = X, like: Recording | None = None) -> Recording:
    """What one run alone hears, of which `record` makes another one if it fails."""
    units = find_units(model)
    recorder = Recorder(model, units, {}, lambda _, result: result, lambda _, args, kwargs: (args, kwargs), (), like)
    return recorder.run((x.clone().requires_grad_(),), {})


@pytest.mark.parametrize("kind", [Mlp, Turned])
def test_a_part_runs_once_for_calls_that_differ_elsewhere(kind: type[Mlp]) -> None:
    found = recorded(Stack(kind))
    assert found.on_fakes
    assert not found.failed
    assert len(found.results) == DEPTH  # with other sizes each
    assert sorted(len(part.results) for part in found.parts.values()) == [1, 1, 1]
    assert {path: call[0][1].shape[2] for path, call in found.resized.items()} == {
        f"blocks.{i}": i + 1 for i in (1, 2, 3)
    }


def test_equal_parts_of_other_units_and_of_other_runs_are_known() -> None:
    first = recorded(Stack(Mlp, Turned))
    kinds = 1 + 2 + 2  # of `kept`, `mlp` and, by its number, `place`
    assert [len(part.results) for part in first.parts.values()] == [1] * kinds
    assert recorded(Stack(Mlp), like=Recording(parts=first.parts)).parts is first.parts
    assert [len(part.results) for part in first.parts.values()] == [1] * kinds
    guessed = Recording(parts=first.parts, ways=({"guess": True},))
    assert recorded(Stack(Mlp), like=guessed).parts is not first.parts


def test_a_part_that_gives_something_else_each_time_ends_no_run_and_is_refused() -> None:
    found = recorded(Stack(Counted))
    assert found.called == {f"blocks.{i}" for i in range(DEPTH)}
    assert "calls" in " ".join(Study(Stack(Counted), example=((X,), {})).found.failures.values())


class Sizes:
    def __init__(self, wide: int) -> None:
        self.wide = wide


class Widened(Mlp):
    """What an object says, it gives."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.sizes = Sizes(wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).repeat(1, self.sizes.wide, 1)


class Narrowed(Block):
    def forward(self, x: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made: torch.Tensor = self.mlp(x)
        return x + made[:, : x.shape[1]] * made.shape[1], before


def test_parts_of_other_units_with_other_objects_are_other_ones() -> None:
    stack = Stack(Mlp)
    stack.blocks = nn.ModuleList([Narrowed(Mlp, 0), Narrowed(Mlp, 1)])
    stack.blocks[0].mlp, stack.blocks[1].mlp = Widened(1), Widened(2)
    stack.blocks[1].other = nn.Identity()  # another unit
    found = recorded(stack)
    assert {given.shape[1] for part in found.parts.values() for given in part.results.values()} == {3, 6}


class Listed(Mlp):
    """Gives a list, into which the block puts something else."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:  # type: ignore[override]
        return [super().forward(x)]


class Filling(Block):
    def forward(self, x: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        listed: Any = self.mlp(x)
        listed.append(x)
        one, other = listed
        return one + other, torch.cat([before, self.kept(x).unsqueeze(2)], 2)


class Casting(Block):
    """Computes the same twice, once in another type."""

    def forward(self, x: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            one = self.mlp(x)
        other = self.mlp(x)
        assert (one.dtype, other.dtype) == (torch.bfloat16, torch.float32)
        return x + one * other, torch.cat([before, self.kept(x).unsqueeze(2)], 2)


class Looking(Block):
    """Asks what a part of it takes."""

    def forward(self, x: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert list(inspect.signature(self.mlp.forward).parameters) == ["x"]
        return super().forward(x, before)


@pytest.mark.parametrize(("block", "kind"), [(Filling, Listed), (Casting, Mlp), (Looking, Mlp)])
def test_blocks_find_in_a_part_that_is_known_what_it_would_give(block: type[Block], kind: type[Mlp]) -> None:
    stack = Stack(Mlp)
    stack.blocks = nn.ModuleList(block(kind, i) for i in range(DEPTH))
    found = recorded(stack)
    assert not found.failed
    assert found.called == {f"blocks.{i}" for i in range(DEPTH)}


@pytest.mark.parametrize("kind", [Mlp, Turned])
def test_such_a_stack_is_exact(kind: type[Mlp]) -> None:
    torch.manual_seed(0)
    example: Any = ((X.double(),), {})
    model = Stack(kind).double()
    plan = Study(model, example=example).plan(2)
    assert "column" in {p.placement for unit in plan.units for p in unit.parameters}
    verify(model, tp=2, example=example).raise_for_failure()


class Kept:
    """What blocks leave something in."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None


class Leaving(Mlp):
    def forward(self, x: torch.Tensor, kept: Kept) -> torch.Tensor:
        print("a block")
        kept.last = x
        return super().forward(x)


class Base(nn.Module):
    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Leaving() for _ in range(DEPTH))
        self.head = nn.Identity() if head is None else head

    def forward(self, x: torch.Tensor, kept: Kept) -> BaseModelOutput:
        print("a base")
        for block in self.blocks:
            x = block(x, kept)
        return BaseModelOutput(self.head(x))


class WithHead(nn.Module):
    """A base and a head, which the base has itself if it is `inside`. One that `fills` writes what the head gives into what the
    base has given."""

    def __init__(self, *, inside: bool = False, heeds: bool = False, fills: bool = False) -> None:
        super().__init__()
        head = nn.Linear(WIDTH, 5 * WIDTH)
        self.base, self.heeds, self.fills = Base(head if inside else None), heeds, fills
        self.head = nn.Identity() if inside else head

    def forward(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        kept = Kept()
        output = self.base(x, kept)
        given = self.head(output.last_hidden_state)
        if self.fills:
            output.last_hidden_state = given
        if self.heeds and kept.last is None:
            raise ValueError("nothing was left")
        return given + given if twice else given


def read_in_a_second_run(model: nn.Module, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[Any]]:
    """What is printed in a run about the head, and what is put in place of its results."""
    units = find_units(model)
    first = record(model, units, (X,), {})
    (head,) = {unit.shape for unit in units if unit.path.endswith("head")}
    capsys.readouterr()
    seen = []

    def given(shape: int, result: Any) -> Any:
        seen.extend([tuple(result.shape)] if shape == head else [])
        return result

    found = record(model, units, (X, True), {}, given=given, like=first, about=[head])
    assert found.result.shape == (2, 3, 5 * WIDTH)
    assert not found.failed
    return capsys.readouterr().out, seen


@pytest.mark.parametrize("fills", [False, True])
def test_in_a_run_about_a_head_nothing_else_runs(capsys: pytest.CaptureFixture[str], fills: bool) -> None:
    assert read_in_a_second_run(WithHead(fills=fills), capsys) == ("", [(2, 3, 5 * WIDTH)])


def test_what_has_the_head_in_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_in_a_second_run(WithHead(inside=True), capsys) == ("a base\n", [(2, 3, 5 * WIDTH)])


def test_a_model_that_reads_what_blocks_leave_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    printed, seen = read_in_a_second_run(WithHead(heeds=True), capsys)
    assert printed.count("a block") == DEPTH
    assert seen[-1] == (2, 3, 5 * WIDTH)


def test_in_other_runs_what_is_around_blocks_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = WithHead()
    units = find_units(model)
    first = record(model, units, (X,), {})
    capsys.readouterr()
    second = record(model, units, (X,), {}, like=first)
    assert capsys.readouterr().out == "a base\na block\n"  # which may leave something
    assert second.called == first.called == {unit.path for unit in units}
