"""Combinations of options for the chains of a unit, in order of the memory they leave on a rank, made one after the other.

What chains hold adds up unless they share a parameter, so each group of chains that do is listed by itself, and the sums
are counted up from the smallest: a unit of a hundred tables costs no more than one of two.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..axes.layout import Cut, Cuts, factors_of, is_even, layout_of, parts_of
from ..axes.term import Axis, Term, axes_of_dims
from ..chains.match import Proposal
from .mesh import refine, spreads

# With more combinations of equal memory than this only the first count: those that change the fewest of the options that
# the rules prefer. What leaves more memory is looked for from these alone.
MOST_TIES = 512
# With more chains than this left to choose, what they can leave of one parameter is bounded, not listed.
MOST_LISTED = 4
# What all that is left to choose can leave is known exactly, if it goes by no more ways than this to have chosen before.
MOST_WAYS = 1 << 12
# The elements of a parameter that cannot be held so.
_NEVER = 1 << 80


@dataclass(frozen=True)
class _Pick:
    """Options of the chains of one group: the elements of the group's parameters on a rank, their numbers, the cuts."""

    elements: int
    numbers: tuple[tuple[int, int], ...]
    cuts: tuple[Mapping[Axis, Cut], ...]


_Level: TypeAlias = tuple[_Pick, ...]  # picks of one group that leave equally many elements


class _Group:
    """The picks of the chains of one group, by how many elements they leave on a rank, made as they are asked for."""

    def __init__(self, picks: Iterator[_Pick]) -> None:
        self._found = list[_Level]()
        self._rest = (tuple(level) for _, level in itertools.groupby(picks, key=lambda pick: pick.elements))

    def at(self, place: int) -> _Level | None:
        """The level at a place in this order; None behind the last."""
        while len(self._found) <= place:
            if (level := next(self._rest, None)) is None:
                return None
            self._found.append(level)
        return self._found[place]

    def first(self) -> _Level:
        """The level of the least elements; to cut nothing is a pick."""
        level = self.at(0)
        assert level is not None
        return level


def combinations(
    proposals: Sequence[Proposal],
    parameters: Sequence[tuple[Term, ...]],
    ranks: int,
    summed: Sequence[Collection[Term]] = (),
) -> Iterator[tuple[int, dict[Axis, Cut]]]:
    """Every combination of options that nests, with the elements of all parameters on a rank, in order of these.

    Of each parameter `summed` has the dims that its readers sum over: no segment of these is whole beside one that is cut.
    """
    shared = _shared(proposals, parameters)
    sums = {id(dims): terms for dims, terms in zip(parameters, summed, strict=False)}
    groups = [_Group(_picks(members, own, proposals, ranks, sums)) for members, own in shared]
    held = {id(dims) for _, own in shared for dims in own}
    rest = sum(elements_of(dims, {}) for dims in parameters if id(dims) not in held)
    is_whole_listed = False
    for elements, levels in itertools.groupby(_in_order(groups), key=_elements):
        seen = set()
        ties = itertools.chain.from_iterable(itertools.product(*each) for each in levels)
        for picks in sorted(itertools.islice(ties, MOST_TIES), key=_numbers):
            cuts = refine([cuts for pick in picks for cuts in pick.cuts], ranks)
            if cuts is None:
                continue
            # The same parts of the same axes in another order of the ranks move the same bytes.
            key = frozenset((axis, parts_of(cut.over), cut.padded) for axis, cut in cuts.items())
            if key not in seen:
                seen.add(key)
                is_whole_listed |= not cuts
                yield rest + elements, cuts
    if not is_whole_listed:
        yield sum(elements_of(dims, {}) for dims in parameters), {}


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


def _picks(
    members: list[int],
    own: list[tuple[Term, ...]],
    proposals: Sequence[Proposal],
    ranks: int,
    sums: Mapping[int, Collection[Term]],
) -> Iterator[_Pick]:
    """The picks of a group, in order of their elements, and among equals of the numbers of their options.

    Options are chosen for one chain after the other, always going on from the choice that may leave the fewest elements.
    """
    options = [list(_options(proposals[i], ranks)) for i in members]
    axes = [proposals[i].axes for i in members]
    sizes = [_Sizes(dims, sums.get(id(dims), ()), axes, options, ranks) for dims in own]
    rest = _Rest(sizes, options)
    heap: list[tuple[int, tuple[int, ...]]] = [(rest.least(()), ())]
    found = Counter[int]()
    while heap:
        least, chosen = heapq.heappop(heap)
        if found[least] >= MOST_TIES:
            continue
        if least >= _NEVER:
            return
        if len(chosen) == len(members):
            cuts = tuple(own[number] for own, number in zip(options, chosen, strict=True))
            nested = refine(cuts, ranks)
            if nested is not None and not any(cuts_twice(dims, nested) for dims in own):
                elements = sum(elements_of(dims, nested) for dims in own)
                found[elements] += 1
                yield _Pick(elements, tuple(zip(members, chosen, strict=True)), cuts)
            continue
        before = least - rest.least(chosen)
        for number in range(len(options[len(chosen)])):
            more = (*chosen, number)
            heapq.heappush(heap, (before + rest.decided(more) + rest.least(more), more))


class _Rest:
    """What options of the chains to come can leave of the parameters that they touch, by what is chosen for those before.

    A parameter is decided with the last of its chains. The fewest elements of all others are known exactly, from the last chain
    to the first, where few choices made before matter for them; else each parameter counts with the fewest that its own chains
    can leave of it.
    """

    def __init__(self, sizes: Sequence[_Sizes], options: Sequence[Sequence[Mapping[Axis, Cut]]]) -> None:
        places = range(len(options))
        self.ending = [[size for size in sizes if size.chains[-1] == place] for place in places]
        self.waiting = [[size for size in sizes if size.chains[-1] >= place] for place in (*places, len(options))]
        # For each place the chains before it that a parameter which is not decided has.
        self.before = [
            sorted({each for size in waiting for each in size.chains if each < place})
            for place, waiting in enumerate(self.waiting)
        ]
        ways = max(math.prod(len(options[each]) for each in before) for before in self.before)
        self.known: dict[tuple[int, tuple[int, ...]], int] | None = {} if ways <= MOST_WAYS else None
        if self.known is not None:
            self._find(options)

    def decided(self, chosen: Sequence[int]) -> int:
        """The elements of the parameters whose last chain was chosen last."""
        return sum(size.least(chosen) for size in self.ending[len(chosen) - 1])

    def least(self, chosen: Sequence[int]) -> int:
        """No more elements than can be left of the parameters that are not decided."""
        if self.known is None:
            return sum(size.least(chosen) for size in self.waiting[len(chosen)])
        return self.known[len(chosen), tuple(chosen[each] for each in self.before[len(chosen)])]

    def _find(self, options: Sequence[Sequence[Mapping[Axis, Cut]]]) -> None:
        assert self.known is not None
        self.known[len(options), ()] = 0
        for place in reversed(range(len(options))):
            chosen = [0] * place
            for way in itertools.product(*(range(len(options[each])) for each in self.before[place])):
                for each, number in zip(self.before[place], way, strict=True):
                    chosen[each] = number
                every = ([*chosen, number] for number in range(len(options[place])))
                self.known[place, way] = min(self.decided(more) + self.least(more) for more in every)


class _Sizes:
    """The elements of one parameter on a rank, by the options of the chains that cut it; `_NEVER` for those that do not go
    together."""

    def __init__(
        self,
        dims: tuple[Term, ...],
        summed: Collection[Term],
        axes: Sequence[Sequence[Axis]],
        options: Sequence[Sequence[Mapping[Axis, Cut]]],
        ranks: int,
    ) -> None:
        held = set(axes_of_dims(dims))
        self.chains = [place for place, own in enumerate(axes) if held & set(own)]
        self.known: dict[tuple[int, ...], int] = {}
        self.dims, self.options, self.ranks = dims, [options[place] for place in self.chains], ranks
        self.whole, self.summed = elements_of(dims, {}), summed

    def least(self, chosen: Sequence[int]) -> int:
        """The fewest that options can leave, if the first chains of all have these; no more than that, where many are left."""
        own = tuple(chosen[place] for place in self.chains if place < len(chosen))
        if own not in self.known:
            if len(self.chains) - len(own) > MOST_LISTED:
                self.known[own] = self._bound(own)
            elif len(own) == len(self.chains):
                cuts = refine([given[number] for given, number in zip(self.options, own, strict=True)], self.ranks)
                self.known[own] = elements_of(self.dims, cuts) if cuts is not None and self._may_be(cuts) else _NEVER
            else:
                more = range(len(self.options[len(own)]))
                self.known[own] = min(self._least_of((*own, number)) for number in more)
        return self.known[own]

    def _may_be(self, cuts: Cuts) -> bool:
        return not cuts_twice(self.dims, cuts) and all(is_even(layout_of(term, cuts)) for term in self.summed)

    def _bound(self, own: tuple[int, ...]) -> int:
        """No more than options can leave: every other chain cuts each of its axes as small as it can, and all ranks together
        hold the parameter at least once."""
        cuts = refine([given[number] for given, number in zip(self.options, own, strict=False)], self.ranks)
        if cuts is None:
            return _NEVER
        for options in self.options[len(own) :]:
            for axis in {axis for option in options for axis in option}:
                found = [option[axis] for option in options if axis in option]
                cuts[axis] = min(found, key=lambda cut: cut.local)
        return max(elements_of(self.dims, cuts), -(-self.whole // self.ranks))

    def _least_of(self, own: tuple[int, ...]) -> int:
        if own not in self.known:
            places = dict(zip(self.chains, own, strict=False))
            self.least([places.get(place, 0) for place in range(self.chains[len(own) - 1] + 1)])
        return self.known[own]


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


def _in_order(groups: Sequence[_Group]) -> Iterator[list[_Level]]:
    """One level of every group, in order of the sum of their elements; each combination comes once."""
    first = tuple(0 for _ in groups)
    heap = [(_elements(group.first() for group in groups), first, 0)]
    found = Counter[int]()
    while heap:
        elements, places, last = heapq.heappop(heap)
        if found[elements] >= MOST_TIES:
            continue
        found[elements] += 1
        levels = [group.at(place) for group, place in zip(groups, places, strict=True)]
        yield [level for level in levels if level is not None]
        for i in range(last, len(groups)):
            now, then = levels[i], groups[i].at(places[i] + 1)
            if now is not None and then is not None:
                more = elements + then[0].elements - now[0].elements
                heapq.heappush(heap, (more, (*places[:i], places[i] + 1, *places[i + 1 :]), i))


def _elements(levels: Iterable[_Level]) -> int:
    return sum(level[0].elements for level in levels)


def _numbers(picks: Iterable[_Pick]) -> list[tuple[int, int]]:
    return sorted(number for pick in picks for number in pick.numbers)
