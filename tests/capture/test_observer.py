"""Observation tells every read, whatever the order in which classes are watched, and leaves nothing behind."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.capture.contract.frames import Tracing
from autotp.capture.contract.values import kind_of

WIDTH, INNER = 16, 24


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class ScaleOfItsOwn(Scale):
    """A class that inherits from one that is watched before it."""


class Counted:
    def __getattribute__(self, name: str) -> object:
        return object.__getattribute__(self, name)


class Unwatchable(Scale, Counted):
    """Its access to attributes stands behind nn.Module's, where no class of its own can be put."""


class Block(nn.Module):
    def __init__(self, *scales: type[nn.Module]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(kind() for kind in scales)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = scale(x)
        return x + self.down(self.up(x).relu())


def planned(*scales: type[nn.Module]) -> list[tuple[str, ...]]:
    model = nn.Sequential(Block(*scales), Block(*scales))
    plan = autotp.plan(model, 2, example=(torch.zeros(2, WIDTH),))
    return [unit.instances for unit in plan.units]


def changed_classes() -> list[type]:
    kinds = [Block, Scale, ScaleOfItsOwn, Unwatchable, nn.Linear, nn.Module, Counted]
    return [kind for kind in kinds if "__getattribute__" in vars(kind) and kind is not Counted]


def test_a_class_and_one_that_inherits_from_it_are_both_watched() -> None:
    for order in ((Scale, ScaleOfItsOwn), (ScaleOfItsOwn, Scale), (nn.Identity, Scale, ScaleOfItsOwn, Scale)):
        assert planned(*order) == [("0", "1")], order
        assert changed_classes() == []


def test_classes_are_as_before_where_watching_cannot_begin() -> None:
    assert ("0", "1") not in planned(ScaleOfItsOwn, Unwatchable)
    assert changed_classes() == []
    assert planned(Scale) == [("0", "1")]


@torch.compile(backend="eager")
def compiled(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + x.shape[-1]


class CallsCompiled(Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return compiled(super().forward(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo asks for it, in the dense model
def test_a_compiled_function_is_traced_as_it_is_written() -> None:
    """Dynamo would compile what observes, reach it as if it were the model's, and leave its classes changed."""
    for _ in range(2):
        assert planned(CallsCompiled) == [("0", "1")]
        assert changed_classes() == []
    model = nn.Sequential(Block(CallsCompiled), Block(CallsCompiled))
    autotp.verify(model, 2, example=(torch.randn(2, WIDTH),)).raise_for_failure()


def twice(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return function(self, x) * 2

    return run


class Decorated(Scale):
    @torch.no_grad()
    @twice
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_what_a_decorator_of_torch_s_runs_is_looked_up_again() -> None:
    assert planned(Decorated) == [("0", "1")]


class Entered:
    """Notes which functions begin."""

    keeping, lenient = frozenset[types.CodeType](), False

    def __init__(self) -> None:
        self.names: list[str] = []

    def enter(self, frame: types.FrameType) -> None:
        self.names.append(frame.f_code.co_name)

    def act(self, *args: Any) -> None: ...


def test_a_class_says_for_whoever_asks_what_its_objects_are(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[type] = []

    def hook(kind: type, other: type) -> Any:
        return True if other in known else NotImplemented

    def asks(value: object) -> bool:
        return isinstance(value, MutableMapping)

    monkeypatch.setattr(MutableMapping, "__subclasshook__", classmethod(hook))
    for ask, is_noted in ((kind_of, False), (asks, True)):
        fresh, entered = type("Fresh", (), {})(), Entered()
        with Tracing(entered):  # type: ignore[arg-type]
            ask(fresh)
        assert ("hook" in entered.names) is is_noted


class WritesGlobals(Block):
    """Asks for a class by the name that a trace has something else for, and takes its globals as one dict."""

    def __init__(self) -> None:
        super().__init__(Scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x) if type(self) is WritesGlobals else x
        globals()["_calls"] = globals().get("_calls", 0) + 1
        type(self).calls = isinstance(y, torch.Tensor) and _calls  # type: ignore[attr-defined, name-defined]  # noqa: F821
        return y


def test_what_a_trace_has_among_globals_does_not_stay_there() -> None:
    before = dict(globals())
    model = nn.Sequential(WritesGlobals(), WritesGlobals())
    autotp.plan(model, 2, example=(torch.zeros(2, WIDTH),))
    assert dict(globals()) == before
    assert not hasattr(WritesGlobals, "calls")
