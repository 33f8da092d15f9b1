"""Choosing for all units of a model, for what the plan is to be best for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from torch import nn

from .choose import Choice, UnitProblem, choose, held_as, local_elements, without
from .cost import Hardware
from .front import MOST_LISTED, Front, fastest
from .objective import Objective, UnitTime
from .survey import Survey
from .weigh import Weigher

# A unit, by its shape, and the name that a parameter has in it.
Place: TypeAlias = tuple[int, str]
TIED = "it is tied to a parameter that cannot be cut the same way"


class Select(Protocol):
    """Gives a choice for each of the units, by their shape."""

    def __call__(self, problems: Mapping[int, UnitProblem]) -> dict[int, Choice]: ...

    def agree(
        self, problems: Mapping[int, UnitProblem], places: Sequence[Place], *, must_be_whole: bool
    ) -> dict[int, UnitProblem]:
        """The problems in which all places hold the same of one parameter."""
        ...


class LeastMemory:
    """Each unit by itself: least memory, then least time. A problem that was solved is not solved again."""

    def __init__(self, weighers: Mapping[int, Weigher], ranks: int) -> None:
        self.weighers, self.ranks = weighers, ranks
        self.known: dict[int, tuple[UnitProblem, Choice]] = {}  # by identity

    def __call__(self, problems: Mapping[int, UnitProblem]) -> dict[int, Choice]:
        for shape, problem in problems.items():
            if id(problem) not in self.known:
                self.known[id(problem)] = problem, choose(problem, self.ranks, self.weighers[shape])
        return {shape: self.known[id(problem)][1] for shape, problem in problems.items()}

    def agree(
        self, problems: Mapping[int, UnitProblem], places: Sequence[Place], *, must_be_whole: bool
    ) -> dict[int, UnitProblem]:
        agreed = dict(problems)
        for shape, name in places:
            reading = [proposal for proposal in agreed[shape].proposals if name in proposal.parameters]
            agreed[shape] = without(agreed[shape], reading, TIED)
        return agreed


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
        self.known: dict[int, tuple[UnitProblem, Front]] = {}  # by identity

    def __call__(self, problems: Mapping[int, UnitProblem]) -> dict[int, Choice]:
        chosen = self._chosen(problems)
        assert chosen is not None, "nothing needs to be cut"
        return {shape: self._settled(self._front(shape, problems[shape]), choice) for shape, choice in chosen.items()}

    def agree(
        self, problems: Mapping[int, UnitProblem], places: Sequence[Place], *, must_be_whole: bool
    ) -> dict[int, UnitProblem]:
        """The parameter is held in that way, of all that its units know, with which they are the fastest together."""
        ways = [] if must_be_whole else [self._ways(problems[shape], name) for shape, name in places]
        common = [way for way in ways[0] if all(way in other for other in ways)] if ways else [()]
        trials = (_holding(problems, places, way) for way in common)
        return min(trials, key=self._weight)

    def _ways(self, problem: UnitProblem, name: str) -> list[tuple[str, ...]]:
        every = itertools.islice(problem.combinations(self.ranks), MOST_LISTED)
        return list(dict.fromkeys([(), *(held_as(problem, cuts, name) for _, cuts in every)]))

    def _weight(self, problems: Mapping[int, UnitProblem]) -> tuple[float, float]:
        """How many elements too many a rank holds under the best choices, and their seconds."""
        chosen = self._chosen(problems)
        if chosen is None:
            return math.inf, math.inf
        elements = sum(self.units[shape] * choice.elements for shape, choice in chosen.items())
        return max(elements - self.most, 0), sum(self.units[shape] * choice.seconds for shape, choice in chosen.items())

    def _chosen(self, problems: Mapping[int, UnitProblem]) -> dict[int, Choice] | None:
        fronts = {shape: self._front(shape, problem) for shape, problem in problems.items()}
        best = {shape: front.fastest() for shape, front in fronts.items()}
        chosen = {shape: choice for shape, choice in best.items() if choice is not None}
        if len(chosen) < len(best):
            return None
        if sum(self.units[shape] * choice.elements for shape, choice in chosen.items()) <= self.most:
            return chosen
        found = fastest([(self.units[shape], front.choices()) for shape, front in fronts.items()], self.most)
        return dict(zip(fronts, found, strict=True))

    def _front(self, shape: int, problem: UnitProblem) -> Front:
        if id(problem) not in self.known:
            time = UnitTime(problem, self.machine, self.objective)
            self.known[id(problem)] = problem, Front(problem, self.ranks, self.weighers[shape], time)
        return self.known[id(problem)][1]

    def _settled(self, front: Front, choice: Choice) -> Choice:
        return replace(front.settled(choice), left=front.prices(choice, self.ranks))


def _holding(
    problems: Mapping[int, UnitProblem], places: Sequence[Place], way: tuple[str, ...]
) -> dict[int, UnitProblem]:
    """The problems, of which these hold a parameter in one way."""
    found = dict(problems)
    for shape, name in places:
        found[shape] = replace(found[shape], held={**found[shape].held, name: way})
    return found
