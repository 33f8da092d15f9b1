"""Choosing for the least time: of every unit the choices of which none is better in memory and in time, and of all units
together those that are fastest within the memory that there is."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..axes.layout import Cut, Cuts
from ..axes.term import Axis
from ..chains.match import Proposal
from ..errors import UnsoundPlanError
from .choose import Choice, UnitProblem, held_as, local_elements, placed, weighed
from .combinations import cuts_twice
from .mesh import refine, spreads
from .objective import UnitTime
from .weigh import Weigher

# Combinations of one unit that are looked at. Units of very many chains alone have more: of theirs those of the least memory are.
# An indexer beside latent attention and experts has 21,130.
MOST_LISTED = 1 << 15


@dataclass(frozen=True)
class Together:
    """Choices for some units: elements on a rank, seconds, and the place of each unit's choice in its front."""

    elements: int
    seconds: float
    places: tuple[int, ...]


class Front:
    """The combinations of one unit, and the best of them; `seconds` of its choices is the time of the work.

    Those of few cuts are placed first, and only if they may be better than what is known: a combination computes at least what
    its cuts leave, and sends no less than one all of whose cuts it has: what it sends for these would do for them alone.
    """

    def __init__(self, problem: UnitProblem, ranks: int, weigher: Weigher, time: UnitTime) -> None:
        self.problem, self.weigher, self.time = problem, weigher, time
        fitting = (pair for pair in problem.combinations(ranks) if _fits(problem, pair[1]))
        every = itertools.islice(fitting, MOST_LISTED)
        self.every = sorted(
            (_Combination(cuts, elements, time.least_under(cuts)) for elements, cuts in every),
            key=lambda each: (len(each.cuts), each.least, each.elements),
        )
        self.found: dict[int, Choice | None] = {}  # by the place in that list
        self.sent: list[tuple[frozenset[tuple[Axis, Cut]], float]] = []
        self.refused: list[str] = []

    def fastest(self) -> Choice | None:
        """The fastest choice; of several that of the least memory. None if a parameter cannot be held as it has to."""
        firsts = (
            next(group)[0] for _, group in itertools.groupby(enumerate(self.every), lambda pair: len(pair[1].cuts))
        )
        best = min(filter(None, map(self._choice, firsts)), key=_key, default=None)
        for place, each in enumerate(self.every):
            if best is None or self._at_least(each) < best.seconds:
                best = min(filter(None, (best, self._choice(place))), key=_key, default=None)
        return best

    def choices(self) -> list[Choice]:
        """The choices that are faster than all of less memory, in order of memory."""
        found: list[Choice] = []
        for place, each in enumerate(self.every):
            least = self._at_least(each)
            if any(other.elements <= each.elements and other.seconds <= least for other in found):
                continue
            if (choice := self._choice(place)) is not None:
                found.append(choice)
        best: list[Choice] = []
        for choice in sorted(found, key=lambda choice: (choice.elements, choice.seconds)):
            if not best or choice.seconds < best[-1].seconds:
                best.append(choice)
        return best

    def _at_least(self, each: _Combination) -> float:
        """What a combination cannot be faster than, as far as it is known what others send."""
        return each.least + max((seconds for cuts, seconds in self.sent if cuts <= each.items), default=0.0)

    def _choice(self, place: int) -> Choice | None:
        """A combination that can be placed; without a backward where the work has none."""
        if place not in self.found:
            each = self.every[place]
            try:
                placement = placed(self.problem, each.cuts, self.weigher, backward=self.time.backward)
            except UnsoundPlanError as error:
                self.refused.append(str(error))
                self.found[place] = None
                return None
            computing, sending = self.time.of(placement)
            self.sent.append((each.items, sending))
            self.found[place] = Choice(each.cuts, placement, each.elements, computing + sending)
        return self.found[place]

    def settled(self, choice: Choice) -> Choice:
        """A choice as a plan has it, which says what a step sends: with its backward."""
        whole = weighed(self.problem, choice.cuts, choice.elements, self.weigher)
        return replace(whole, seconds=choice.seconds, refused=tuple(self.refused))

    def prices(self, choice: Choice, ranks: int) -> dict[Proposal, str]:
        """For every chain that a choice leaves whole though it shares nothing with those that are cut: what cutting it would save
        and cost, in words."""
        found = {}
        for proposal in self.problem.proposals:
            if not any(axis in choice.cuts for axis in proposal.axes):
                other = self._with(choice, proposal, ranks)
                if other is not None:
                    saved, longer = choice.elements - other[0], other[1] - choice.seconds
                    found[proposal] = (
                        f"cutting it would save {saved:,} elements a rank, and take {longer * 1e6:.3g} us longer"
                    )
        return found

    def _with(self, choice: Choice, proposal: Proposal, ranks: int) -> tuple[int, float] | None:
        """Elements and seconds of a choice that cuts one more chain, in the way that computes the least; None if none can be."""
        every = (refine([choice.cuts, spread.cuts()], ranks) for spread in spreads(proposal.axes, ranks))
        parameters = list(self.problem.parameters().values())
        ways = [cuts for cuts in every if cuts is not None and not any(cuts_twice(d, cuts) for d in parameters)]
        for cuts in sorted(ways, key=self.time.least_under):
            with suppress(UnsoundPlanError):
                placement = placed(self.problem, cuts, self.weigher, backward=self.time.backward)
                return local_elements(self.problem, cuts), sum(self.time.of(placement))
        return None


@dataclass(frozen=True)
class _Combination:
    """Cuts with the elements that they leave on a rank, and the seconds that they compute at least."""

    cuts: Cuts
    elements: int
    least: float

    @functools.cached_property
    def items(self) -> frozenset[tuple[Axis, Cut]]:
        return frozenset(self.cuts.items())


def _fits(problem: UnitProblem, cuts: Cuts) -> bool:
    return all(held_as(problem, cuts, name) == wanted for name, wanted in problem.held.items())


def _key(choice: Choice) -> tuple[float, int]:
    return choice.seconds, choice.elements


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
