"""Calls that have no program: they run on gathered weights and are right, or are refused; never wrong."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.capture.opaque import Widths
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.planner.make import make_plan
from autotp.planner.survey import survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate

HIDDEN, INNER = 16, 24
EXACT = 1e-12


class Store:
    """Keeps what it is given, and may keep some of it back."""

    def __init__(self) -> None:
        self.rows: torch.Tensor | None = None

    def set_linear_cache(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def full_windows(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows if self.rows is None else torch.cat([self.rows, rows], 1)
        whole = rows.shape[1] // 4 * 4
        self.rows = rows[:, whole:]
        return rows[:, :whole]


class Mixer(nn.Module):
    """An MLP that can be called in ways that its plan was not made for."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
        self.scale, self.extra = nn.Parameter(torch.randn(INNER)), nn.Linear(HIDDEN, INNER, bias=False)

    def forward(self, x: torch.Tensor, way: str = "", store: Store | None = None) -> torch.Tensor:
        y = self.up(x)
        if "values" in way:
            y = y * (2 if float(x.detach().sum()) > 0 else 3)
        if way == "pins":
            y = y.softmax(-1)
        if way == "extra":
            y = y * self.scale + self.extra(x)
        if "reads" in way and store is not None and store.rows is not None:
            y = y + store.rows
        if "keeps" in way and store is not None:
            store.set_linear_cache(y)
        if way == "windows" and store is not None:
            return self.down(y).sum() + store.full_windows(x).sum()
        return self.down(y.relu())


def run(model: Any, calls: list[dict[str, Any]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The results of some calls after each other, and the gradient of the input."""
    x = torch.randn(2, 5, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    results = [model(x, **call) for call in calls]
    sum(result.square().sum() for result in results).backward()  # type: ignore[union-attr]
    assert x.grad is not None
    return [result.detach() for result in results], x.grad


def compare(calls: Callable[[], list[dict[str, Any]]], tp: int = 3) -> None:
    """Every result and gradient of the parallel model is the dense one's."""
    torch.manual_seed(0)
    model = Mixer().double()
    found = survey(model, examples_for(model, torch.randn(2, 5, HIDDEN, dtype=torch.float64, requires_grad=True)))
    plan = make_plan(model, found, tp)
    assert plan.units[0].layouts().keys() == {"up.weight", "up.bias", "down.weight"}
    compilers = make_compilers(plan, found)

    def on_rank(ranks: Ranks) -> Any:
        parallel = apply_plan(copy.deepcopy(model), plan, ranks, compilers)
        return *run(parallel, calls()), autotp.full_gradients(parallel)

    results, gradient = run(model, calls())
    for own, own_gradient, gradients in simulate(tp, on_rank):
        assert torch.allclose(own_gradient, gradient, atol=EXACT)
        assert all(torch.allclose(a, b, atol=EXACT) for a, b in zip(own, results, strict=True))
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                assert torch.allclose(gradients[name], parameter.grad, atol=EXACT), name


@pytest.mark.parametrize("way", ["values", "pins"])
def test_a_call_without_a_program_runs_whole(way: str) -> None:
    with pytest.warns(UserWarning, match="computes some calls with whole weights, gathered every time"):
        compare(lambda: [{}, {"way": way}, {}])


def test_a_plan_is_sound_for_the_call_it_was_made_from_even_if_that_one_comes_later() -> None:
    with pytest.warns(UserWarning, match="must be whole at softmax"):
        compare(lambda: [{"way": "pins"}, {}])


def test_a_parameter_that_the_planned_call_does_not_read_is_sliced() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(lambda: [{"way": "extra"}, {}])


def test_an_object_that_keeps_rows_back_is_given_whole_ones() -> None:
    def calls() -> list[dict[str, Any]]:
        store = Store()
        return [{"way": "windows", "store": store} for _ in range(3)]

    with pytest.warns(UserWarning, match="keeps rows back"):
        compare(calls)


@pytest.mark.filterwarnings("ignore:.*computes some calls with whole weights")
def test_a_whole_run_never_reads_slices_from_an_object() -> None:
    def calls() -> list[dict[str, Any]]:
        store = Store()
        return [{"way": "keeps", "store": store}, {"way": "values reads", "store": store}]

    with pytest.raises(autotp.TraceError, match="its objects hold slices"):
        compare(calls)


def test_a_whole_run_may_be_given_an_object_whose_slices_it_does_not_read() -> None:
    def calls() -> list[dict[str, Any]]:
        store = Store()
        return [{"way": "keeps", "store": store}, {"way": "values", "store": store}]

    with pytest.warns(UserWarning, match="computes some calls with whole weights"):
        compare(calls)


def test_an_object_that_holds_wholes_alone_may_be_in_a_whole_run_after_programs_gave_slices_to_others() -> None:
    def calls() -> list[dict[str, Any]]:
        first, second = Store(), Store()
        kept, other = {"way": "keeps", "store": first}, {"way": "keeps values", "store": second}
        return [kept, kept, other, other, {"way": "keeps", "store": second}]

    with pytest.warns(UserWarning, match="computes some calls with whole weights"):
        compare(calls)


def test_wholes_and_slices_of_one_size_are_not_told_apart() -> None:
    widths = Widths()
    widths.note((2, 5, 8), (2, 5, 24))
    assert widths.is_whole((3, 7, 24))
    assert not widths.is_whole((3, 7, 8))
    assert not widths.is_whole((3, 7, 12))
    Widths(widths).note((2, 5, 24), (2, 5, 72))
    assert not widths.is_whole((3, 7, 24))
    assert Widths(widths).is_whole((3, 7, 72))
