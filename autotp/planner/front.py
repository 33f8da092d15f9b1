"""Choosing for the least time: of every unit the choices of which none is better in memory and in time, and of all units
together those that are fastest within the memory that there is."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..axes.layout import Cuts
from ..chains.match import Proposal
from ..errors import UnsoundPlanError
from .choose import Choice, UnitProblem, local_elements, weighed
from .combinations import cuts_twice
from .mesh import refine, spreads
from .objective import UnitTime
from .weigh import Weigher

# Combinations of one unit that are weighed. Only of units of very many chains are there more: then those of the least memory are.
MOST_WEIGHED = 1024


@dataclass(frozen=True)
class Together:
    """Choices for some units: elements on a rank, seconds, and the place of each unit's choice in its front."""

    elements: int
    seconds: float
    places: tuple[int, ...]


def front(problem: UnitProblem, ranks: int, weigher: Weigher, time: UnitTime) -> list[Choice]:
    """The choices that are faster than all of less memory, in order of memory; `seconds` is the time of the work.

    Combinations are looked at in order of memory. It ends where reading the weights alone takes longer than the fastest one, and
    what takes longer to compute alone is not placed.
    """
    found: list[Choice] = []
    refused: list[str] = []
    for elements, cuts in itertools.islice(problem.combinations(ranks), MOST_WEIGHED):
        if found and time.least(elements) >= found[-1].seconds:
            break
        if found and time.least_under(cuts) >= found[-1].seconds:
            continue
        try:
            choice = weighed(problem, cuts, elements, weigher)
        except UnsoundPlanError as error:
            refused.append(str(error))
            continue
        choice = replace(choice, seconds=time.of(choice), refused=tuple(refused))
        if not found or choice.seconds < found[-1].seconds:
            if found and found[-1].elements == elements:
                found.pop()
            found.append(choice)
    return found


def fastest(fronts: Sequence[tuple[int, Sequence[Choice]]], most: float) -> list[Choice]:
    """For each front one choice, which so many units have: the fastest together with at most so many elements on a rank, or,
    if there is none, those with the fewest."""
    together = [Together(0, 0.0, ())]
    for units, choices in fronts:
        more = (
            Together(
                each.elements + units * choice.elements, each.seconds + units * choice.seconds, (*each.places, place)
            )
            for each in together
            for place, choice in enumerate(choices)
        )
        together = list(_best_of(more))
    within = bisect.bisect_right(together, most, key=lambda each: each.elements)
    best = together[max(within - 1, 0)]
    return [choices[place] for place, (_, choices) in zip(best.places, fronts, strict=True)]


def _best_of(found: Iterator[Together]) -> Iterator[Together]:
    """Those that are faster than all with fewer elements, in order of these."""
    seconds = float("inf")
    for each in sorted(found, key=lambda each: (each.elements, each.seconds)):
        if each.seconds < seconds:
            seconds = each.seconds
            yield each


def prices(problem: UnitProblem, choice: Choice, ranks: int, weigher: Weigher, time: UnitTime) -> dict[Proposal, str]:
    """For every chain that a choice leaves whole though it shares nothing with those that are cut: what cutting it would save
    and cost, in words."""
    found = {}
    for proposal in problem.proposals:
        if not any(axis in choice.cuts for axis in proposal.axes):
            others = (
                _with(problem, choice, spread.cuts(), ranks, weigher, time) for spread in spreads(proposal.axes, ranks)
            )
            possible = [other for other in others if other is not None]
            if possible:
                best = min(possible, key=lambda other: other.seconds)
                saved, longer = choice.elements - best.elements, best.seconds - choice.seconds
                found[proposal] = (
                    f"cutting it would save {saved:,} elements a rank, and take {longer * 1e6:.3g} us longer"
                )
    return found


def _with(
    problem: UnitProblem, choice: Choice, cuts: Cuts, ranks: int, weigher: Weigher, time: UnitTime
) -> Choice | None:
    """A choice that has some more cuts; None where they cannot be."""
    nested = refine([choice.cuts, cuts], ranks)
    if nested is None or any(cuts_twice(dims, nested) for dims in problem.parameters().values()):
        return None
    with suppress(UnsoundPlanError):
        other = weighed(problem, nested, local_elements(problem, nested), weigher)
        return replace(other, seconds=time.of(other))
    return None
