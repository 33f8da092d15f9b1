"""Combinations of cuts: all of them in order of memory, made one after the other."""

from __future__ import annotations

import itertools

import torch
from torch import nn

import autotp
from autotp.huggingface.examples import examples_for
from autotp.planner.choose import UnitProblem, local_elements
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


def problem_of(model: nn.Module) -> UnitProblem:
    (problem,) = survey(model, examples_for(model, torch.zeros(2, 3, dtype=torch.long))).problems.values()
    return problem


def test_all_combinations_come_once_and_in_order_of_memory() -> None:
    problem = problem_of(Tables(4))
    found = list(problem.combinations(4))
    assert [elements for elements, _ in found] == sorted(elements for elements, _ in found)
    assert all(elements == local_elements(problem, cuts) for elements, cuts in found)
    keys = [frozenset((axis, cut.over) for axis, cut in cuts.items()) for _, cuts in found]
    assert len(keys) == len(set(keys))
    assert set(keys) == {frozenset((a, cut.over) for a, cut in cuts.items()) for cuts in all_cuts(problem, 4)}


def test_the_first_combinations_of_very_many_are_made_without_the_others() -> None:
    problem = problem_of(Tables(60))
    first = list(itertools.islice(problem.combinations(2), 100))
    assert len(first[0][1]) == len(problem.proposals) > 60
    assert [elements for elements, _ in first] == sorted(elements for elements, _ in first)


def test_a_unit_of_many_tables_is_planned() -> None:
    plan = autotp.plan(Tables(40), 2, example=torch.zeros(2, 3, dtype=torch.long))
    assert {p.placement for p in plan.units[0].parameters if "tables" in p.name} == {"vocabulary"}
