"""Choosing for all units of a model, for what the plan is to be best for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from torch import nn

from .choose import Choice, UnitProblem, choose, local_elements
from .cost import Hardware
from .front import Front, fastest
from .objective import Objective, UnitTime
from .survey import Survey
from .weigh import Weigher

# Gives a choice for each of the units, by their shape.
Select: TypeAlias = Callable[[Mapping[int, UnitProblem]], dict[int, Choice]]


class LeastMemory:
    """Each unit by itself: least memory, then least time. A problem that was solved is not solved again."""

    def __init__(self, weighers: Mapping[int, Weigher], ranks: int) -> None:
        self.weighers, self.ranks = weighers, ranks
        self.known: dict[int, tuple[UnitProblem, Choice]] = {}

    def __call__(self, problems: Mapping[int, UnitProblem]) -> dict[int, Choice]:
        for shape, problem in problems.items():
            if shape not in self.known or self.known[shape][0] is not problem:
                self.known[shape] = problem, choose(problem, self.ranks, self.weighers[shape])
        return {shape: self.known[shape][1] for shape in problems}


class LeastTime:
    """All units together: least time, in no more than some memory of a rank."""

    def __init__(
        self,
        model: nn.Module,
        found: Survey,
        weighers: Mapping[int, Weigher],
        ranks: int,
        machine: Hardware,
        objective: Objective,
    ) -> None:
        self.weighers, self.ranks, self.machine, self.objective = weighers, ranks, machine, objective
        self.units = {s: sum(u.shape == s and u.path not in found.failures for u in found.units) for s in weighers}
        inside = sum(self.units[shape] * local_elements(problem, {}) for shape, problem in found.problems.items())
        outside = max(sum(parameter.numel() for parameter in model.parameters()) - inside, 0)
        self.most = objective.most_bytes / objective.bytes_of_element - outside
        self.known: dict[int, tuple[UnitProblem, Front]] = {}

    def __call__(self, problems: Mapping[int, UnitProblem]) -> dict[int, Choice]:
        for shape, problem in problems.items():
            if shape not in self.known or self.known[shape][0] is not problem:
                time = UnitTime(problem, self.machine, self.objective)
                self.known[shape] = problem, Front(problem, self.ranks, self.weighers[shape], time)
        fronts = {shape: self.known[shape][1] for shape in problems}
        chosen = {shape: front.fastest() for shape, front in fronts.items()}
        if sum(self.units[shape] * choice.elements for shape, choice in chosen.items()) > self.most:
            found = fastest([(self.units[shape], front.choices()) for shape, front in fronts.items()], self.most)
            chosen = dict(zip(fronts, found, strict=True))
        return {shape: self._settled(fronts[shape], choice) for shape, choice in chosen.items()}

    def _settled(self, front: Front, choice: Choice) -> Choice:
        return replace(front.settled(choice), left=front.prices(choice, self.ranks))
