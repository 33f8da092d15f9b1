"""A run that needs values is made in the ways that are known to work, and what nobody can follow is not tried again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from autotp.capture import record as record_module
from autotp.capture.record import record
from autotp.capture.recorded import Recording
from autotp.capture.recorder import Recorder
from autotp.capture.units import find_units
from autotp.errors import TraceError

WIDTH = 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Reading(Block):
    """It needs values itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else x


class Stack(nn.Module):
    def __init__(self, *kinds: type[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for kind in kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Choosing(Stack):
    """Its own Python goes by values: the last block runs, or does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *first, last = self.blocks
        for block in first:
            x = block(x)
        return last(x) if x.sum() > 0 else x


class Asserting(Stack):
    """One of the two answers is an error."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return super().forward(x)
        raise ValueError("it is not positive")


class Hidden(Stack):
    """Reads what a function keeps, which nothing tells of, after something that no program could say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x is self.blocks else x * self.factor())

    def factor(self) -> Any:
        factor = 2.0
        inner = lambda: factor  # noqa: E731
        return inner.__closure__[0].cell_contents  # type: ignore[index]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In which ways runs were made."""
    ways: list[str] = []

    def recorder(*args: Any, **how: bool) -> Recorder:
        ways.append(" ".join(f"{name}={value}" for name, value in how.items()))
        return Recorder(*args, **how)

    monkeypatch.setattr(record_module, "Recorder", recorder)
    return ways


def recorded(model: nn.Module, x: torch.Tensor, **given: Any) -> Recording:
    return record(model, find_units(model), (x,), {}, **given)


META, REAL = torch.empty(2, WIDTH, device="meta"), torch.ones(2, WIDTH)
ALL = ["", "every=True"]
GUESSES = ["guess=True", "guess=False"]


def again(found: Recording, shapes: Sequence[int] = (0, 1)) -> Recording:
    return found.as_units({shape: shape for shape in shapes})


def test_without_weights_both_answers_are_tried_and_only_they_the_next_time(ran: list[str]) -> None:
    model = Choosing(Block, Block).to("meta")
    first = recorded(model, META)
    assert ran == [*ALL, *GUESSES]
    assert (first.called, first.on_fakes) == ({"blocks.0", "blocks.1"}, False)
    second = recorded(model, META, like=again(first))
    assert ran[4:] == GUESSES
    assert (second.called, second.guessed, second.ways) == (first.called, first.guessed, first.ways)
    assert second.calls.keys() == first.calls.keys()


def test_an_answer_that_is_an_error_is_not_given_again(ran: list[str]) -> None:
    model = Asserting(Block).to("meta")
    first = recorded(model, META)
    assert ran == [*ALL, *GUESSES]
    recorded(model, META, like=first)
    assert ran[4:] == GUESSES[:1]


def test_with_weights_a_run_on_values_is_the_only_one(ran: list[str]) -> None:
    model = Choosing(Block, Block)
    first = recorded(model, REAL)
    assert ran == [*ALL, "real=True"]
    second = recorded(model, 2 * REAL, like=again(first))
    assert ran[3:] == ["real=True"]
    assert first.guessed == second.guessed == ""
    assert not second.on_fakes


def test_where_something_stood_in_for_a_result_all_ways_are_tried_again(ran: list[str]) -> None:
    """What a block that needs values is taken to give may be why the Python around it fails."""
    model = Choosing(Reading, Block).to("meta")
    first = recorded(model, META)
    assert not first.is_sure
    assert again(first).ways == ()
    assert ran == [*ALL, *GUESSES]
    recorded(model, META, like=again(first))
    assert ran[4:] == [*ALL, *GUESSES]
    recorded(model, META, like=first)  # of the same units it is for the same reason
    assert ran[8:] == GUESSES


def test_where_known_ways_fail_all_are_tried(ran: list[str]) -> None:
    known = Recording(ways=({"guess": False},))
    found = recorded(Asserting(Block).to("meta"), META, like=known)
    assert ran == ["guess=False", *ALL, *GUESSES]
    assert found.called == {"blocks.0"}


def test_no_more_ways_are_taken_than_it_takes_to_call_what_is_wanted(ran: list[str]) -> None:
    model = Choosing(Block, Block).to("meta")
    first = recorded(model, META)
    found = recorded(model, torch.empty(4, WIDTH, device="meta"), like=first, until=first.calls.keys())
    assert ran[4:] == GUESSES[:1]
    assert found.calls.keys() == first.calls.keys()
    model.blocks[1].append = nn.Linear(WIDTH, WIDTH, device="meta")  # a structure that only one answer calls
    ran.clear()
    first = recorded(model, META)
    swapped = Recording(ways=first.ways[::-1])
    found = recorded(model, META, like=swapped, until=first.calls.keys())
    assert ran[4:] == GUESSES[::-1]
    assert found.calls.keys() == first.calls.keys()


class Either(Stack):
    """Each answer calls another block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](x) if x.sum() > 0 else self.blocks[1](x)


def test_another_way_is_taken_where_one_calls_something_else(ran: list[str]) -> None:
    model = Either(Block, Reading).to("meta")
    known = Recording(ways=({"guess": True}, {"guess": False}))
    wanted = {unit.path: unit.shape for unit in find_units(model)}["blocks.1"]
    found = recorded(model, META, like=known, until=[wanted])
    assert ran == GUESSES
    assert wanted in found.calls


class OfFakes(Stack):
    """It runs on fakes as far as its block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x.sum() < 0, "it has values")  # type: ignore[no-untyped-call]
        x = super().forward(x)
        return x if x.sum() > 0 else -x


def test_a_run_on_fakes_does_not_end_early_where_values_are_needed(ran: list[str]) -> None:
    known = Recording(ways=({"real": True},))
    with pytest.raises(TraceError, match="it has values"):
        recorded(OfFakes(Block), REAL, like=known, until=[0])
    assert ran == ["real=True", *ALL, "real=True"]


def test_what_nobody_can_follow_is_tried_once_and_named(ran: list[str]) -> None:
    with pytest.raises(TraceError, match="it asks for __closure__"):
        recorded(Hidden(Block), REAL)
    assert ran == [""]


class Mapped:
    """An object that sets attributes under other names, which its class knows."""

    names: ClassVar = {"width": "size"}

    def __init__(self) -> None:
        self.size, self.seen = 2, [0]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(super().__getattribute__("names").get(name, name), value)


class Counted(Mapped):
    """One that changes what it finds so."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "width":
            super().__getattribute__("seen").append(value)
            super().__getattribute__("names")["seen"] = "width"
        super().__setattr__(name, value)


class Unnamed(Mapped):
    """One of which nothing tells what it asks for."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        super().__getattribute__(name)


class Setting(Stack):
    def __init__(self, config: Mapped) -> None:
        super().__init__(Block)
        self.config = config

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.config.width = 3
        return super().forward(x) * self.config.size


@pytest.mark.parametrize("kind", [Mapped, Counted])
def test_what_sets_attributes_by_words_runs_and_is_put_back(kind: type[Mapped]) -> None:
    model = Setting(kind())
    found = recorded(model, REAL)
    assert found.called == {"blocks.0"}
    assert (model.config.size, model.config.seen, Mapped.names) == (2, [0], {"width": "size"})


def test_what_asks_for_any_attribute_does_not(ran: list[str]) -> None:
    model = Setting(Unnamed())
    with pytest.raises(TraceError, match="it asks for __getattribute__"):
        recorded(model, REAL)
    assert ran == [""]
