"""Traces on disk: another process with the same code and state traces nothing, and one with other code or state is not misled.

A process is played by a Python module that is made anew under the name of the one before: what is read from disk finds things by
their names. On real ranks processes are processes.
"""

from __future__ import annotations

import copy
import itertools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.dispatch.compiler import Compiler
from autotp.errors import TraceError
from autotp.planner.arguments import Arguments
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.pipeline import Session

TP = 2
NAME = "a_model_of_a_user"
HEAD = """
import contextvars, decimal, enum, functools, math, os, re, types
import numpy, torch
from torch import nn
from torch.nn import functional as F
"""
BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        {init}

    def forward(self, x):
        return x + self.down({body})

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


@dataclass(frozen=True)
class Case:
    """Two versions of a program: `first` and `then` stand in the same places, in text before the block, in its `init` and `body`;
    `after` is run when the model is made. One that is not `kept` is traced in every process, others until so many have `begun`: a
    memo that a trace fills is empty where a trace is read."""

    name: str
    first: str
    then: str
    before: str = ""
    init: str = "pass"
    body: str = "F.gelu(self.up(x))"
    after: str = ""
    kept: bool = True
    begun: int = 1

    def source(self, version: str) -> tuple[str, str]:
        block = BLOCK.format(init=self.init, body=self.body)
        return (HEAD + self.before + block).replace("VERSION", version), self.after.replace("VERSION", version)


CASES = (
    Case("the code of the block", "F.gelu", "F.silu", body="VERSION(self.up(x))"),
    Case("a constant in the code", "2.0", "3.0", body="VERSION * F.gelu(self.up(x))"),
    Case("a global", "2.0", "3.0", before="scale = VERSION", body="scale * F.gelu(self.up(x))"),
    Case("a function", "t * 2", "t * 3", before="def act(t):\n    return VERSION", body="act(F.gelu(self.up(x)))"),
    Case("a function within one", "2", "3", before="def act(t):\n    def inner(u):\n        return u * VERSION\n    return inner(t)", body="act(self.up(x))"),
    Case("a default", "2.0", "3.0", before="def act(t, s=VERSION):\n    return t * s", body="act(F.gelu(self.up(x)))"),
    Case("a closure", "2.0", "3.0", before="def make(s):\n    def act(t):\n        return t * s\n    return act\nact = make(VERSION)", body="act(self.up(x))"),
    Case("a partial", "0.1", "0.2", before="act = functools.partial(F.leaky_relu, negative_slope=VERSION)", body="act(self.up(x))"),
    Case("an attribute", "2.0", "3.0", init="self.scale = VERSION", body="self.scale * F.gelu(self.up(x))"),
    Case("an attribute's kind", "2", "True", init="self.scale = VERSION", body="self.scale * F.gelu(self.up(x))"),
    Case("a zero's sign", "0.0", "-0.0", init="self.scale = VERSION", body="self.up(x) + math.copysign(1.0, self.scale)"),
    Case("an item of a list", "[1.0, 2.0]", "[2.0, 1.0]", init="self.scales = VERSION", body="self.scales[0] * F.gelu(self.up(x))"),
    Case("the length of a list", "[1.0]", "[1.0, 1.0]", init="self.scales = VERSION", body="sum(self.scales) * F.gelu(self.up(x))"),
    Case("the order of a dict", "dict(a=2.0, b=3.0)", "dict(b=3.0, a=2.0)", init="self.named = VERSION", body="(F.gelu(self.up(x)) + list(self.named.values())[0]) * list(self.named.values())[1]"),
    Case("a set", "{1}", "{1, 2}", init="self.kinds = VERSION", body="len(self.kinds) * F.gelu(self.up(x))"),
    Case("a class's attribute", "2.0", "3.0", before="class Settings:\n    scale = VERSION", init="self.settings = Settings()", body="self.settings.scale * F.gelu(self.up(x))"),
    Case("a property", "2.0", "3.0", before="class Settings:\n    @property\n    def scale(self):\n        return VERSION", init="self.settings = Settings()", body="self.settings.scale * F.gelu(self.up(x))"),
    Case("a method of a base class", "2.0", "3.0", before="class Base:\n    def scale(self):\n        return VERSION\nclass Settings(Base):\n    pass", init="self.settings = Settings()", body="self.settings.scale() * F.gelu(self.up(x))"),
    Case("a special method", "2.0", "3.0", before="class Scale:\n    def __mul__(self, t):\n        return VERSION * t", init="self.scale = Scale()", body="self.scale * F.gelu(self.up(x))"),
    Case("a slot", "2.0", "3.0", before="class Settings:\n    __slots__ = ('scale',)\n    def __init__(self):\n        self.scale = VERSION", init="self.settings = Settings()", body="self.settings.scale * F.gelu(self.up(x))"),
    Case("an enumeration", "2.0", "3.0", before="class Kind(enum.Enum):\n    A = VERSION", init="self.kind = Kind.A", body="self.kind.value * F.gelu(self.up(x))"),
    Case("a subclass of float", "2.0", "3.0", before="class Number(float):\n    pass", init="self.scale = Number(VERSION)", body="float(self.scale) * F.gelu(self.up(x))", kept=False),
    Case("a pattern", "a+", "b+", before="pattern = re.compile('VERSION')", body="(2.0 if pattern.pattern == 'a+' else 3.0) * F.gelu(self.up(x))"),
    Case("a number of numpy's", "2.0", "3.0", init="self.scale = numpy.float64(VERSION)", body="float(self.scale) * F.gelu(self.up(x))"),
    Case("an array", "2.0", "3.0", init="self.scale = numpy.array([VERSION])", body="float(self.scale[0]) * F.gelu(self.up(x))"),
    Case("a decimal", "2", "3", init="self.scale = decimal.Decimal('VERSION')", body="float(self.scale) * F.gelu(self.up(x))", kept=False),
    Case("an environment variable", "2", "3", before="os.environ['A_SCALE_OF_A_USER'] = 'VERSION'", body="int(os.environ['A_SCALE_OF_A_USER']) * F.gelu(self.up(x))"),
    Case("a context variable", "2.0", "3.0", before="scale = contextvars.ContextVar('scale', default=VERSION)", body="scale.get() * F.gelu(self.up(x))"),
    Case("a memo", "2.0", "3.0", before="@functools.lru_cache\ndef scale(name):\n    return VERSION", body="scale('a') * F.gelu(self.up(x))", begun=2),
    Case("what a memo keeps", "2.0", "3.0", before="state = [VERSION]\n@functools.lru_cache\ndef scale(name):\n    return state[0]\nscale('a')\nstate[0] = 1.0", body="scale('a') * F.gelu(self.up(x))"),
    Case("a buffer", "2.0", "3.0", init="self.register_buffer('scale', torch.tensor(VERSION, dtype=torch.float64))", body="self.scale * F.gelu(self.up(x))"),
    Case("a buffer's shape", "1", "16", init="self.register_buffer('shift', torch.ones(VERSION, dtype=torch.float64))", body="F.gelu(self.up(x * self.shift * self.shift.shape[0]))"),
    Case("a constant tensor", "2.0", "3.0", body="F.gelu(self.up(x)) * torch.tensor([VERSION], dtype=torch.float64)"),
    Case("a tensor that is no buffer", "2.0", "3.0", init="self.scale = torch.tensor(VERSION, dtype=torch.float64)", body="self.scale * F.gelu(self.up(x))"),
    Case("a hook", "2.0", "3.0", after="for layer in model.layers:\n    layer.down.register_forward_hook(lambda m, a, r: r * VERSION)"),
    Case("a hook before", "2.0", "3.0", after="for layer in model.layers:\n    layer.up.register_forward_pre_hook(lambda m, a: (a[0] * VERSION,))"),
    Case("a forward of an object's own", "2.0", "3.0", init="self.act = nn.GELU()", body="self.act(self.up(x))", after="for layer in model.layers:\n    layer.act.forward = lambda t: F.gelu(t) * VERSION"),
    Case("a part's class", "nn.GELU()", "nn.SiLU()", init="self.act = VERSION", body="self.act(self.up(x))"),
    Case("a part's setting", "0.1", "0.2", init="self.act = nn.LeakyReLU(VERSION)", body="self.act(self.up(x))"),
    Case("a function of torch that somebody replaced", "F.gelu", "F.silu", before="act = VERSION", body="act(self.up(x))"),
    Case("a function with a derivative", "2", "3", before="class Act(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, t):\n        return t * VERSION\n    @staticmethod\n    def backward(ctx, g):\n        return g * VERSION", body="Act.apply(self.up(x))"),
    Case("which of two objects is one", "a", "b", before="class Flag:\n    pass\na, b = Flag(), Flag()\nchosen = VERSION", body="(2.0 if chosen is a else 3.0) * F.gelu(self.up(x))"),
    Case("an entry of a table", "F.gelu", "F.silu", before="table = {'act': VERSION}", body="table['act'](self.up(x))"),
    Case("an attribute that is missing", "pass", "self.extra = 3.0", init="VERSION", body="getattr(self, 'extra', 2.0) * F.gelu(self.up(x))"),
    Case("whether weights are one", "pass", "self.up2.weight = self.up.weight", init="self.up2 = nn.Linear(16, 32)\n        VERSION", body="F.gelu(self.up(x)) * self.up2(x)"),
    Case("a number in a module of types", "2.0", "3.0", before="settings = types.SimpleNamespace(scale=VERSION)", body="settings.scale * F.gelu(self.up(x))"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def kept_in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("AUTOTP_CACHE", str(tmp_path))
    monkeypatch.setenv("A_SCALE_OF_A_USER", "")
    yield
    sys.modules.pop(NAME, None)


def model_of(source: str, after: str) -> nn.Module:
    """The model of a program that has just begun."""
    module = sys.modules[NAME] = types.ModuleType(NAME)
    exec(compile(source, f"{NAME}.py", "exec"), vars(module))
    torch.manual_seed(0)
    model: nn.Module = vars(module)["Model"]().double()
    exec(after, vars(module), {"model": model})
    return model


def inputs(batch: int = 2) -> torch.Tensor:
    made = torch.randn(batch, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(batch))
    return made.requires_grad_()


def numbers(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result of a call, without gradients and with them, and the input's gradient."""
    with torch.no_grad():
        still = model(x)
    result = model(x)
    result.square().sum().backward()
    assert x.grad is not None
    return [still, result.detach(), x.grad]


def parallel(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], int]:
    """What a parallel model computes in two calls of other sizes, and how many traces that took."""
    traces, traced = itertools.count(), Compiler._traced

    def counted(self: Compiler, *args: Any) -> Any:
        next(traces)
        return traced(self, *args)

    monkeypatch.setattr(Compiler, "_traced", counted)
    session = Session(copy.deepcopy(model), example=Arguments(inputs()))
    plan = session.plan(TP)
    assert plan.elements()[1] < plan.elements()[0]
    compilers = make_compilers(plan, None, calls=session.calls(plan), keeps=True)

    def run(ranks: Ranks) -> list[torch.Tensor]:
        own = apply_plan(copy.deepcopy(model), plan, ranks, compilers)
        return [*numbers(own, inputs()), *numbers(own, inputs(3))]

    found = simulate(TP, run)[0]
    monkeypatch.setattr(Compiler, "_traced", traced)
    return found, next(traces)


def check(case: Case, version: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """One process: the parallel model computes what the dense one does. Returns the number of traces."""
    model = model_of(*case.source(version))
    found, traces = parallel(model, monkeypatch)
    true = [*numbers(copy.deepcopy(model), inputs()), *numbers(copy.deepcopy(model), inputs(3))]
    for one, other in zip(found, true, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    return traces


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_another_process_goes_by_what_it_has_itself(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(case.begun):
        assert check(case, case.first, monkeypatch) > 0
    again = check(case, case.first, monkeypatch)
    assert (again == 0) is case.kept
    check(case, case.then, monkeypatch)
    assert check(case, case.first, monkeypatch) == again
