"""Traces on disk: another process with the same code and state traces nothing, and one with other code or state is not misled.

A process is played by a Python module that is made anew under the name of the one before: what is read from disk finds things by
their names. On real ranks processes are processes.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotp.axes.annotation import annotation
from autotp.capture.disk import traces
from autotp.capture.traced import Traced
from autotp.dispatch import kept
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.dispatch.compiler import Compiler
from autotp.dispatch.kept import KeptTraces
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
    """Two versions of a program, as the file of the cases says."""

    name: str
    versions: tuple[str, str]
    before: str = ""
    init: str = "pass"
    body: str = "F.gelu(self.up(x))"
    after: str = ""
    kept: bool = True

    def source(self, version: str) -> tuple[str, str]:
        block = BLOCK.format(init=self.init, body=self.body)
        return (HEAD + self.before + block).replace("VERSION", version), self.after.replace("VERSION", version)


CASES = [Case(**case) for case in tomllib.loads(Path(__file__).with_name("kept_traces.toml").read_text())["case"]]


@pytest.fixture(autouse=True)
def kept_in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("AUTOTP_CACHE", str(tmp_path))
    monkeypatch.setenv("A_SCALE_OF_A_USER", "")
    yield
    end()


def end() -> None:
    """The program ends, and undoes what would outlive it here."""
    module = sys.modules.pop(NAME, None)
    getattr(module, "undo", lambda: None)()


def model_of(source: str, after: str) -> nn.Module:
    """The model of a program that has just begun."""
    end()
    module = sys.modules[NAME] = types.ModuleType(NAME)
    exec(compile(source, f"{NAME}.py", "exec"), vars(module))
    torch.manual_seed(0)
    model: nn.Module = vars(module)["Model"]().double()
    vars(module)["model"] = model
    exec(after, vars(module))
    del vars(module)["model"]
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


@pytest.mark.sample(16)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_another_process_goes_by_what_it_has_itself(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    first, then = case.versions
    assert check(case, first, monkeypatch) > 0
    again = check(case, first, monkeypatch)
    assert (again == 0) is case.kept
    check(case, then, monkeypatch)
    assert check(case, first, monkeypatch) == again


def files(folder: Path) -> list[Path]:
    """What is kept there, without the plans."""
    return sorted(file for file in folder.rglob("*.json") if "traces" in file.parts)


def cut_off(text: str) -> str:
    return text[: len(text) // 2]


def emptied(text: str) -> str:
    return "{}"


def another(text: str) -> str:
    return json.dumps([1, {"contract": None}])


def of_a_function(text: str) -> str:
    """What a reader must not call."""
    data = json.loads(text)
    for node in data["nodes"]:
        if node[0] == "call_function":
            given = {"leaves": ["tuple"], "places": [], "tree": ""}
            node[1] = {"operator": "function.rmtree", "applies": False, "name": ["shutil", "rmtree"], **given}
    return json.dumps(data)


def of_an_operator(text: str) -> str:
    return text.replace('"aten.gelu.default"', '"aten.nothing.default"').replace('"aten.linear.default"', '"os.system"')


def of_other_sizes(text: str) -> str:
    data = json.loads(text)
    data["sizes"] = [[*place, value + 1] for *place, value in data["sizes"]]
    return json.dumps(data)


BROKEN = (cut_off, emptied, another, of_a_function, of_an_operator, of_other_sizes)
PLAIN = Case("plain", ("2.0", "3.0"), body="VERSION * F.gelu(self.up(x))")


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_what_cannot_be_read_is_traced(broken: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = check(PLAIN, "2.0", monkeypatch)
    assert len(files(tmp_path)) >= first
    for file in files(tmp_path):
        file.write_text(broken(file.read_text()))
    assert check(PLAIN, "2.0", monkeypatch) == first


def test_a_folder_that_cannot_be_written_only_costs_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTP_CACHE", str(tmp_path / "file"))
    first = check(PLAIN, "2.0", monkeypatch)
    assert first > 0
    assert check(PLAIN, "2.0", monkeypatch) == first


def test_there_are_not_more_files_than_states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = Case("many", ("", ""), init="self.scale = VERSION", body="self.scale * F.gelu(self.up(x))")
    monkeypatch.setattr(kept, "MOST", 2)
    for number in range(4):
        assert check(case, f"{number}.5", monkeypatch) > 0
    assert all(len(list(folder.glob("*.json"))) <= 2 for folder in {file.parent for file in files(tmp_path)})
    assert check(case, "3.5", monkeypatch) == 0
    assert check(case, "0.5", monkeypatch) > 0


# A size that turns out to be a number is another thing than a number: what is stacked before the batch is told by that.
SETTLED = Case("settled", ("2.0", "3.0"), body="F.gelu(self.up(x)) * (VERSION if x.shape[0] == 2 else 0.5)")
ONE_LESS = Case(
    "one_less", ("2", "3"), body="F.gelu(self.up(x)) * x.new_ones(len(x) - 1 if len(x) == VERSION else 1, 1, 1)"
)


def said_of(traced: Traced) -> list[str]:
    """The nodes of a trace, with what is known of each and of its sizes."""
    return [f"{node.format_node()} {annotation(node)} {sizes(node.meta.get('val'))}" for node in traced.graph.nodes]


def sizes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [*map(sizes, value.shape), value.dtype]
    return value if isinstance(value, int) else f"{type(value).__name__} {value}"


@pytest.mark.parametrize("case", [PLAIN, SETTLED, ONE_LESS], ids=lambda case: case.name)
def test_a_trace_is_read_as_it_was_written(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are made of it are the same, word for word: ranks that trace and ranks that read go together."""
    # torch logs what it finds of sizes, and the handlers of pytest would be code that runs while a block is traced.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    written: list[list[str]] = []
    made = KeptTraces.keep

    def described(self: KeptTraces, traced: Any, call: Any) -> None:
        written.append(said_of(traced))
        made(self, traced, call)

    monkeypatch.setattr(KeptTraces, "keep", described)
    check(case, case.versions[0], monkeypatch)
    read: list[list[str]] = []
    found = KeptTraces.find

    def noted(self: KeptTraces, call: Any, site: Any) -> Any:
        traced = found(self, call, site)
        read.append(said_of(traced) if traced else [])
        return traced

    monkeypatch.setattr(KeptTraces, "find", noted)
    check(case, case.versions[0], monkeypatch)
    assert written
    assert sorted(read) == sorted(written)


@pytest.mark.parametrize("name", ["_data", "_trace"])
def test_a_trace_that_fails_to_be_kept_or_read_only_costs_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("an object of the model's own")

    monkeypatch.setattr(traces, name, fail)
    first = check(PLAIN, "2.0", monkeypatch)
    assert first > 0
    assert check(PLAIN, "2.0", monkeypatch) == first
