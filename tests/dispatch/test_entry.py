"""A call like the last one runs its program at once; another is looked at, whatever it differs in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.dispatch.unit import UnitForward
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.planner.make import make_plan
from autotp.planner.survey import survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from tests.families import FAMILIES

HIDDEN, INNER = 16, 24
EXACT = 1e-12


class Store:
    """Keeps what it is given, and says a number."""

    def __init__(self, step: int = 1) -> None:
        self.step, self.kept = step, list[torch.Tensor]()

    def set_linear_cache(self, rows: torch.Tensor) -> None:
        self.kept.append(rows)


class OtherStore(Store):
    pass


class CountedStore(Store):
    """Its class is written to whenever there is another one."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1


class Mixer(nn.Module):
    """An MLP whose call has a part of every kind that calls are told apart by."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.factor = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN), 2.0

    def forward(
        self,
        x: torch.Tensor,
        pair: Any = None,
        way: Any = "relu",
        times: int = 1,
        store: Store | None = None,
        second: Store | None = None,
    ) -> torch.Tensor:
        y = getattr(torch, way)(self.up(x)) if isinstance(way, str) else way(self.up(x))
        if pair is not None:
            y = y * (pair[0] if isinstance(pair, tuple) else pair[1]).unsqueeze(-1)
        if store is not None:
            y = y * store.step
            store.set_linear_cache(y)
        if second is not None and second is not store:
            y = y * 5
        y = self.down(y) * times * self.factor
        return y / 2 if self.training else y


def value(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


X, PAIR = value(3, 5, HIDDEN), (value(3, 5), value(3, 5) + 1)
Call = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """Two calls, and what is done to the module and around it before the second. `found`: the second runs at once."""

    first: Call
    second: Call
    change: Callable[[Any], Any] = field(default=lambda model: None)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    found: bool = False


def twice(store: Store) -> dict[str, Any]:
    return {"store": store, "second": store}


def set_factor(model: Any) -> None:
    model.factor = 3.0


CASES = {
    "the same kind": Case(lambda: {"store": Store()}, lambda: {"store": Store()}, found=True),
    "other values": Case(lambda: {"x": X, "pair": PAIR}, lambda: {"x": X + 1, "pair": PAIR[::-1]}, found=True),
    "another size": Case(lambda: {}, lambda: {"x": X[:2]}),
    "a size of one": Case(lambda: {}, lambda: {"x": X[:1]}),
    "fewer dims": Case(lambda: {}, lambda: {"x": X[0]}),
    "another container": Case(lambda: {"pair": PAIR}, lambda: {"pair": list(PAIR)}),
    "a shorter container": Case(lambda: {"pair": PAIR}, lambda: {"pair": PAIR[:1]}),
    "a value for none": Case(lambda: {"pair": None}, lambda: {"pair": PAIR}),
    "none for a value": Case(lambda: {"pair": PAIR}, lambda: {"pair": None}),
    "another keyword": Case(lambda: {"store": Store()}, lambda: {"second": Store()}),
    "one keyword less": Case(lambda: {"times": 2, "way": "tanh"}, lambda: {"way": "tanh"}),
    "another word": Case(lambda: {"way": "tanh"}, lambda: {"way": "sigmoid"}),
    "another function": Case(lambda: {"way": torch.tanh}, lambda: {"way": torch.sigmoid}),
    "another number": Case(lambda: {"times": 2}, lambda: {"times": 3}),
    "a truth for a number": Case(lambda: {"times": 1}, lambda: {"times": True}),
    "another object": Case(lambda: {"store": Store()}, lambda: {"store": OtherStore()}),
    "another of a class that counts": Case(
        lambda: {"store": CountedStore()}, lambda: {"store": CountedStore()}, found=True
    ),
    "an object that says otherwise": Case(lambda: {"store": Store(2)}, lambda: {"store": Store(3)}),
    "an object given twice": Case(lambda: {"store": Store(), "second": Store()}, lambda: twice(Store())),
    "two objects for one": Case(lambda: twice(Store()), lambda: {"store": Store(), "second": Store()}),
    "a gradient": Case(lambda: {}, lambda: {"x": X.clone().requires_grad_()}),
    "no gradients at all": Case(lambda: {}, lambda: {}, around=torch.no_grad),
    "not training": Case(lambda: {}, lambda: {}, change=lambda model: model.eval()),
    "another dtype": Case(lambda: {}, lambda: {"x": X.float()}, change=lambda model: model.float()),
    "another setting": Case(lambda: {}, lambda: {}, change=set_factor),
}


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[UnitForward]:
    """The units whose calls were looked at."""
    seen: list[UnitForward] = []
    look = UnitForward._find_and_run

    def noted(self: UnitForward, *args: Any) -> Any:
        seen.append(self)
        return look(self, *args)

    monkeypatch.setattr(UnitForward, "_find_and_run", noted)
    return seen


def calls(model: Any, case: Case, count: Callable[[], int]) -> tuple[list[torch.Tensor], list[int]]:
    """The results of the first call, three times, of the second, and of the first; how many were looked at after each. The check
    of later calls is written at the second one."""
    results, counts = [], []
    for _ in range(3):
        results.append(model(**{"x": X, **case.first()}))
        counts.append(count())
    case.change(model)
    with case.around():
        results.append(model(**{"x": X, **case.second()}))
    counts.append(count())
    if case.change is CASES["the same kind"].change:
        results.append(model(**{"x": X, **case.first()}))
    return [result.detach() for result in results], counts


@pytest.mark.parametrize("name", CASES)
def test_only_a_call_like_the_last_one_is_not_looked_at(name: str, looked: list[UnitForward]) -> None:
    torch.manual_seed(0)
    case, model = CASES[name], Mixer().double()
    found = survey(model, examples_for(model, X))
    plan = make_plan(model, found, 2)
    assert plan.units[0].layouts().keys() == {"up.weight", "up.bias", "down.weight"}
    compilers = make_compilers(plan, found)

    def on_rank(ranks: Ranks) -> Any:
        parallel = apply_plan(copy.deepcopy(model), plan, ranks, compilers)
        return calls(parallel, case, lambda: sum(unit.module is parallel for unit in looked))

    expected, _ = calls(copy.deepcopy(model), case, lambda: 0)
    for results, counts in simulate(2, on_rank):
        assert counts == [1, 2, 2, 2 if case.found else 3]
        assert len(results) == len(expected)
        for own, dense in zip(results, expected, strict=True):
            assert own.dtype == dense.dtype
            assert torch.allclose(own, dense, atol=EXACT if own.dtype is torch.float64 else 1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_blocks_that_look_things_up_in_tables_are_not_looked_at_again(name: str, looked: list[UnitForward]) -> None:
    """A trace asks for more in transformers' tables of functions than is there behind it."""
    torch.manual_seed(0)
    model = build_model(FAMILIES[name].config(), meta=False).double()
    found = survey(model, examples_for(model, None))
    plan = make_plan(model, found, 2)
    compilers, ids = make_compilers(plan, found), torch.arange(3, 25).reshape(2, 11)

    def on_rank(ranks: Ranks) -> list[int]:
        parallel, counts = apply_plan(copy.deepcopy(model), plan, ranks, compilers), []
        own = {id(module) for module in parallel.modules()}
        for _ in range(4):
            parallel(ids + len(counts))
            counts.append(sum(id(unit.module) in own for unit in looked))
        return counts

    for counts in simulate(2, on_rank):
        assert counts[1] == 2 * counts[0] > 0
        assert counts[1:] == [counts[1]] * 3
