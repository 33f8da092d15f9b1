"""Choosing the cuts of one unit.

The problem: every chain is either left whole or spread over the ranks in one of finitely many ways. Among all
combinations the one with the fewest parameter elements per rank is taken (memory is why a model is cut at all), and
among those of equal memory the one whose collectives, and the waiting for the busiest rank, cost the least. `combinations`
lists them in order of memory, `_best` takes the best of the ties, `weighed` has the cost. The enumeration is complete, so the
choice is exact; only of very many ties not all are weighed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..axes.annotation import annotation
from ..axes.facts import Typing
from ..axes.layout import Cut, Cuts, is_whole, layout_of
from ..axes.term import Axis, Term
from ..chains.match import NearMiss, Proposal, weights_of
from ..errors import UnsoundPlanError
from ..placement.place import Placement, place
from .balance import waiting
from .combinations import combinations, elements_of
from .weigh import Weigher

# Of combinations of equal memory so many are weighed that their graphs have so many nodes together, or so many.
MOST_PLACED, FEWEST_PLACED = 1 << 15, 16


@dataclass(frozen=True)
class UnitProblem:
    """What the planner knows of a unit: its graph, its terms, and the chains proposed for it; on how many ranks positions
    are to be cut; and of parameters that others read as well what a rank has to hold (see `held_as`)."""

    graph: torch.fx.Graph
    typing: Typing
    proposals: tuple[Proposal, ...]
    misses: tuple[NearMiss, ...] = ()
    unread: frozenset[int] = frozenset()
    keep: bool = False
    sequence: int = 0
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_head(self) -> bool:
        """Returns if a chain may end with the unit, whose result is then a slice."""
        return any(proposal.rule.end == "output" for proposal in self.proposals)

    def parameters(self) -> dict[str, tuple[Term, ...]]:
        """The dims of every parameter the graph reads."""
        return {
            str(node.target): self.typing.dims(node)
            for node in self.graph.nodes
            if node.op == "get_attr" and annotation(node).parameter
        }

    def summed(self) -> list[tuple[Term, ...]]:
        """Of every parameter the dims that products with it sum over."""
        found: dict[str, tuple[Term, ...]] = dict.fromkeys(self.parameters(), ())
        for node, fact in self.typing.facts.items():
            for weight in () if fact.looks_up else weights_of(node, self.typing):
                found[str(weight.target)] += fact.contracts
        return list(found.values())

    def combinations(self, ranks: int) -> Iterator[tuple[int, dict[Axis, Cut]]]:
        """Every combination of cuts that nests, with the parameter elements it leaves on a rank, in order of these."""
        return combinations(self.proposals, list(self.parameters().values()), ranks, self.summed())


def without(problem: UnitProblem, out: Collection[Proposal], reason: str) -> UnitProblem:
    """The problem less some proposals, which become near misses."""
    misses = tuple(NearMiss(p.rule.name, p.rule.end, p.site, p.parameters, reason) for p in out)
    kept = tuple(p for p in problem.proposals if p not in out)
    return replace(problem, proposals=kept, misses=problem.misses + misses)


def held_as(problem: UnitProblem, cuts: Cuts, name: str) -> tuple[str, ...]:
    """How a parameter is laid out under some cuts, in words; empty where it is whole."""
    layouts = [layout_of(term, cuts) for term in problem.parameters()[name]]
    return () if all(map(is_whole, layouts)) else tuple(map(str, layouts))


@dataclass(frozen=True)
class Choice:
    """The chosen cuts with their placement; `refused` says why combinations of less memory were not possible, `left` what it
    would save and cost to cut a chain that is left whole, where that was weighed."""

    cuts: Mapping[Axis, Cut]
    placement: Placement
    elements: int
    seconds: float
    refused: tuple[str, ...] = field(default=())
    left: Mapping[Proposal, str] = field(default_factory=dict)


def choose(problem: UnitProblem, ranks: int, weigher: Weigher) -> Choice:
    """The best combination: least memory, then least time."""
    refused: list[str] = []
    for elements, group in itertools.groupby(problem.combinations(ranks), key=lambda pair: pair[0]):
        best = _best(problem, [cuts for _, cuts in group], elements, weigher, refused)
        if best is not None:
            return best
    raise AssertionError("the empty combination is always possible")


def local_elements(problem: UnitProblem, cuts: Cuts) -> int:
    """Parameter elements of a unit on one rank."""
    return sum(elements_of(dims, cuts) for dims in problem.parameters().values())


def placed(problem: UnitProblem, cuts: Cuts, weigher: Weigher, *, backward: bool = True) -> Placement:
    """Where a unit's values are whole, cut or partial under some cuts. Raises UnsoundPlanError for cuts that cannot be."""
    return place(
        problem.graph,
        problem.typing,
        cuts,
        weigher.price,
        problem.unread,
        keep=problem.keep,
        backward=backward,
        sequence=problem.sequence if backward else 0,
        waits=weigher.waits,
    )


def weighed(problem: UnitProblem, cuts: Cuts, elements: int, weigher: Weigher) -> Choice:
    """Some cuts, which leave so many parameter elements on a rank, as a choice. Raises UnsoundPlanError if they cannot be."""
    placement = placed(problem, cuts, weigher)
    return Choice(cuts, placement, elements, weigher.seconds(placement) + waiting(placement, weigher))


def _best(
    problem: UnitProblem,
    candidates: Sequence[dict[Axis, Cut]],
    elements: int,
    weigher: Weigher,
    refused: list[str],
) -> Choice | None:
    choices = []
    for cuts in candidates[: max(MOST_PLACED // len(problem.graph.nodes), FEWEST_PLACED)]:
        try:
            choice = weighed(problem, cuts, elements, weigher)
        except UnsoundPlanError as error:
            refused.append(str(error))
            continue
        choices.append(replace(choice, refused=tuple(refused)))
    return min(choices, key=lambda choice: choice.seconds, default=None)
