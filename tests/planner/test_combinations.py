"""Combinations of cuts: all of them in order of memory, made one after the other."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import autotp
from autotp.axes.layout import Cuts, factors_of, is_even, layout_of
from autotp.chains.match import weights_of
from autotp.huggingface.examples import examples_for
from autotp.planner import combinations
from autotp.planner.choose import UnitProblem, local_elements
from autotp.planner.combinations import elements_of
from autotp.planner.survey import survey
from tests.planner.oracle import all_cuts


class Tables(nn.Module):
    """Many tables that are looked up and added, as of the steps of a path."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({str(i): nn.Embedding(30 + 2 * i, 8) for i in range(count)})
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = sum(table(ids) for table in self.tables.values())
        y: torch.Tensor = self.down(self.up(x).relu())
        return y


class Pairs(nn.Module):
    """Pairs of matrices in one module, whose results are added up: a chain of each, and one that has all of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8 + 2 * (i // 2) * (i % 2), 8, bias=False) for i in range(2 * count)])
        for i in range(count):
            self.layers[2 * i] = nn.Linear(8, 8 + 2 * i, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(0, len(self.layers), 2):
            x = x + self.layers[i + 1](torch.relu(self.layers[i](x)))
        return x


class Dense(nn.Module):
    """Every layer reads what all layers before it have written, side by side."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.wide = nn.ModuleList([nn.Linear(8 + 4 * i, 12) for i in range(count)])
        self.narrow = nn.ModuleList([nn.Linear(12, 4) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            x = torch.cat([x, narrow(torch.relu(wide(x)))], dim=-1)
        return x


class Branches(nn.Module):
    """Blocks of four branches side by side, the later of which have another matrix between."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.first = nn.ModuleList([nn.Linear(8 if i < 4 else 16, 4) for i in range(4 * count)])
        self.between = nn.ModuleList([nn.Linear(4, 4) for _ in range(2 * count)])
        self.last = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(0, len(self.first), 4):
            a, b, c, d = (torch.relu(linear(x)) for linear in self.first[i : i + 4])
            c, d = (linear(y) for linear, y in zip(self.between[i // 2 : i // 2 + 2], (c, d), strict=True))
            x = torch.cat([a, b, c, d], dim=-1)
        return self.last(x)


class Folded(nn.Module):
    """What is between two matrices has several axes, each of which may be cut, and leaves as much."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.up = nn.ModuleList([nn.Linear(8, 24, bias=False) for _ in range(count)])
        self.down = nn.ModuleList([nn.Linear(24, 8, bias=False) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(x).unflatten(-1, (2, 2, 6))).flatten(-3))
        return x


def problem_of(model: nn.Module, example: torch.Tensor | None = None) -> UnitProblem:
    given = torch.zeros(2, 3, dtype=torch.long) if example is None else example
    (problem,) = survey(model, examples_for(model, given)).problems.values()
    return problem


@pytest.mark.parametrize("known", [True, False], ids=["known", "bounded"])
def test_all_combinations_come_once_and_in_order_of_memory(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not known:
        monkeypatch.setattr(combinations, "MOST_LISTED", 0)
        monkeypatch.setattr(combinations, "MOST_WAYS", 0)
    for problem in (
        problem_of(Tables(4)),
        problem_of(Pairs(3), torch.zeros(4, 8)),
        problem_of(Dense(3), torch.zeros(2, 3, 8)),
        problem_of(Branches(1), torch.zeros(2, 3, 8)),
        problem_of(Folded(2), torch.zeros(2, 3, 8)),
    ):
        check_all(problem)


def check_all(problem: UnitProblem) -> None:
    found = list(problem.combinations(4))
    assert [elements for elements, _ in found] == sorted(elements for elements, _ in found)
    assert all(elements == local_elements(problem, cuts) for elements, cuts in found)
    keys = [frozenset((axis, cut.over) for axis, cut in cuts.items()) for _, cuts in found]
    assert len(keys) == len(set(keys))
    possible = [
        cuts
        for cuts in all_cuts(problem, 4)
        if not cuts_a_parameter_twice(problem, cuts) and sums_over_whole_segments_or_cut_ones(problem, cuts)
    ]
    assert set(keys) == {frozenset((a, cut.over) for a, cut in cuts.items()) for cuts in possible}


def cuts_a_parameter_twice(problem: UnitProblem, cuts: Cuts) -> bool:
    """Returns if two dims of a parameter are cut over the same ranks."""
    for dims in problem.parameters().values():
        over = [factor for term in dims for factor in factors_of(layout_of(term, cuts))]
        if len(over) > len(set(over)):
            return True
    return False


def sums_over_whole_segments_or_cut_ones(problem: UnitProblem, cuts: Cuts) -> bool:
    """Returns if no product with a parameter sums over segments of which some are cut and some are whole."""
    typing = problem.typing
    products = [fact for node, fact in typing.facts.items() if weights_of(node, typing) and not fact.looks_up]
    return all(is_even(layout_of(term, cuts)) for fact in products for term in fact.contracts)


def test_the_first_combinations_of_very_many_are_made_without_the_others() -> None:
    problem = problem_of(Tables(60))
    first = list(itertools.islice(problem.combinations(2), 100))
    assert len(first[0][1]) == len(problem.proposals) > 60
    assert [elements for elements, _ in first] == sorted(elements for elements, _ in first)


def test_the_first_combinations_of_chains_that_share_parameters_are_made_without_the_others() -> None:
    problem = problem_of(Pairs(40), torch.zeros(4, 8))
    assert len(problem.proposals) == 41
    first = list(itertools.islice(problem.combinations(2), 100))
    whole = sum(elements_of(dims, {}) for dims in problem.parameters().values())
    assert first[0][0] == whole // 2
    assert [elements for elements, _ in first] == sorted(elements for elements, _ in first)


def test_the_first_combinations_of_chains_that_all_meet_in_a_parameter_are_made_without_the_others() -> None:
    """With each of 2²⁴ ways to choose them, what the last layer leaves on a rank would be computed."""
    problem = problem_of(Dense(24), torch.zeros(2, 3, 8))
    first = list(itertools.islice(problem.combinations(2), 20))
    matrices = sum(elements_of(dims, {}) for dims in problem.parameters().values() if len(dims) > 1)
    assert matrices // 2 <= first[0][0] <= matrices // 2 + 24 * 16
    assert [elements for elements, _ in first] == sorted(elements for elements, _ in first)


def test_of_very_many_of_equal_memory_the_others_are_passed_by() -> None:
    """Each of 16 pairs of matrices may be cut in three ways: 3¹⁶ combinations leave as much."""
    problem = problem_of(Folded(16), torch.zeros(2, 3, 8))
    found = list(problem.combinations(2))
    elements = [elements for elements, _ in found]
    assert elements == sorted(elements)
    assert all(own == local_elements(problem, cuts) for own, cuts in found[::97])
    assert len(set(elements)) > 10
    assert found[-1] == (16 * 2 * 8 * 24, {})
    plan = autotp.plan(Folded(16), 2, example=torch.zeros(2, 3, 8))
    assert sum(p.local_elements for p in plan.units[0].parameters) == elements[0] == 16 * 8 * 24


def test_blocks_of_branches_are_cut_without_many_tries() -> None:
    """What one block writes side by side the next one sums over, so all of it is cut or none."""
    problem = problem_of(Branches(12), torch.zeros(2, 3, 8))
    assert len(problem.proposals) > 60
    elements, cuts = next(iter(problem.combinations(2)))
    whole = sum(elements_of(dims, {}) for dims in problem.parameters().values())
    assert elements < 0.7 * whole
    assert sums_over_whole_segments_or_cut_ones(problem, cuts)
    plan = autotp.plan(Branches(12), 2, example=torch.zeros(2, 3, 8))
    assert sum(p.local_elements for p in plan.units[0].parameters) == elements


def test_a_unit_of_many_tables_is_planned() -> None:
    plan = autotp.plan(Tables(40), 2, example=torch.zeros(2, 3, dtype=torch.long))
    assert {p.placement for p in plan.units[0].parameters if "tables" in p.name} == {"vocabulary"}
