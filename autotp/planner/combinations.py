"""Combinations of options for the chains of a unit, in order of the memory they leave on a rank, made one after the other.

What chains hold adds up unless they share a parameter, so each group of chains that do is listed by itself, and the sums
are counted up from the smallest: a unit of a hundred tables costs no more than one of two.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..axes.layout import Cut, Cuts, factors_of, layout_of, parts_of
from ..axes.term import Axis, Term, axes_of_dims
from ..chains.match import Proposal
from .mesh import refine, spreads

# With more combinations of equal memory than this only the first count: those that change the fewest of the options that
# the rules prefer.
MOST_TIES = 512


@dataclass(frozen=True)
class _Pick:
    """Options of the chains of one group: the elements of the group's parameters on a rank, their numbers, the cuts."""

    elements: int
    numbers: tuple[tuple[int, int], ...]
    cuts: tuple[Mapping[Axis, Cut], ...]


Group: TypeAlias = list[_Pick]


def combinations(
    proposals: Sequence[Proposal], parameters: Sequence[tuple[Term, ...]], ranks: int
) -> Iterator[tuple[int, dict[Axis, Cut]]]:
    """Every combination of options that nests, with the elements of all parameters on a rank, in order of these."""
    shared = _shared(proposals, parameters)
    groups = [_group(members, own, proposals, ranks) for members, own in shared]
    held = {id(dims) for _, own in shared for dims in own}
    rest = sum(elements_of(dims, {}) for dims in parameters if id(dims) not in held)
    for elements, ties in itertools.groupby(_in_order(groups), key=lambda picks: sum(p.elements for p in picks)):
        seen = set()
        for picks in sorted(itertools.islice(ties, MOST_TIES), key=_numbers):
            cuts = refine([cuts for pick in picks for cuts in pick.cuts], ranks)
            if cuts is None:
                continue
            # The same parts of the same axes in another order of the ranks move the same bytes.
            key = frozenset((axis, parts_of(cut.over), cut.padded) for axis, cut in cuts.items())
            if key not in seen:
                seen.add(key)
                yield rest + elements, cuts


def elements_of(dims: Sequence[Term], cuts: Cuts) -> int:
    """Elements of a parameter on one rank."""
    elements = 1
    for term in dims:
        elements *= layout_of(term, cuts).local_size
    return elements


def _shared(
    proposals: Sequence[Proposal], parameters: Sequence[tuple[Term, ...]]
) -> list[tuple[list[int], list[tuple[Term, ...]]]]:
    """The numbers of proposals that share parameters, directly or through others, with these parameters."""
    groups: list[tuple[list[int], list[tuple[Term, ...]]]] = [([i], []) for i in range(len(proposals))]
    for dims in parameters:
        axes = set(axes_of_dims(dims))
        touches = [any(axes & set(proposals[i].axes) for i in group[0]) for group in groups]
        touching = list(itertools.compress(groups, touches))
        if touching:
            members = sorted(i for group in touching for i in group[0])
            merged = (members, [own for group in touching for own in group[1]] + [dims])
            groups = [group for group, touched in zip(groups, touches, strict=True) if not touched] + [merged]
    return sorted(groups, key=lambda group: group[0])


def _group(members: list[int], own: list[tuple[Term, ...]], proposals: Sequence[Proposal], ranks: int) -> Group:
    picks = []
    for options in itertools.product(*(enumerate(_options(proposals[i], ranks)) for i in members)):
        cuts = tuple(cuts for _, cuts in options)
        nested = refine(cuts, ranks)
        if nested is not None and not any(cuts_twice(dims, nested) for dims in own):
            numbers = tuple((i, number) for i, (number, _) in zip(members, options, strict=True))
            picks.append(_Pick(sum(elements_of(dims, nested) for dims in own), numbers, cuts))
    return sorted(picks, key=lambda pick: (pick.elements, pick.numbers))


def cuts_twice(dims: Sequence[Term], cuts: Cuts) -> bool:
    """Returns if two chains cut one parameter over the same ranks, along different dims: it is one or the other."""
    over = [factors_of(layout_of(term, cuts)) for term in dims]
    return sum(map(len, over)) > len(frozenset().union(*over))


def _options(proposal: Proposal, ranks: int) -> Iterator[dict[Axis, Cut]]:
    seen = set()
    for spread in spreads(proposal.axes, ranks):
        cuts = spread.cuts()
        key = tuple(sorted((axis.id, cut.over) for axis, cut in cuts.items()))
        if key not in seen:
            seen.add(key)
            yield cuts
    yield {}


def _in_order(groups: Sequence[Group]) -> Iterator[list[_Pick]]:
    """One pick of every group, in order of the sum of their elements; each combination comes once."""
    first = tuple(0 for _ in groups)
    heap = [(sum(group[0].elements for group in groups), first, 0)]
    while heap:
        elements, places, last = heapq.heappop(heap)
        yield [group[place] for group, place in zip(groups, places, strict=True)]
        for i in range(last, len(groups)):
            if places[i] + 1 < len(groups[i]):
                more = groups[i][places[i] + 1].elements - groups[i][places[i]].elements
                heapq.heappush(heap, (elements + more, (*places[:i], places[i] + 1, *places[i + 1 :]), i))


def _numbers(picks: Sequence[_Pick]) -> list[tuple[int, int]]:
    return sorted(number for pick in picks for number in pick.numbers)
