"""Cuts that are solved part by part are those of the whole network."""

from __future__ import annotations

import itertools
import random

import networkx as nx
import pytest

from autotp.placement.minimum_cut import FIRST, LAST, Edge, behind


def network(seed: int) -> list[Edge]:
    """Places in a few groups, with edges to both ends and among each other, some of them twice, some free, some not to be cut."""
    draw = random.Random(seed)
    places = [(group, number) for group in range(3) for number in range(draw.randint(1, 3))]
    edges = [(FIRST, place, draw.choice((0, 1, 2, 5))) for place in places if draw.random() < 0.6]
    edges += [(place, LAST, draw.choice((0, 1, 3, 4))) for place in places if draw.random() < 0.6]
    within = [pair for pair in itertools.permutations(places, 2) if pair[0][0] == pair[1][0]]
    edges += [(*draw.choice(within), draw.choice((1, 2, 3, None))) for _ in range(6)] if within else []
    again = draw.sample(edges, min(5, len(edges)))
    return [*edges, *again[:2], *((one, other, draw.choice((1, 2, 4))) for one, other, _ in again[2:])]


def crossing(edges: list[Edge], beyond: set[object]) -> float:
    """What it costs that these places are on the side of the last one."""
    beyond = {*beyond, LAST}
    cut = [cost for one, other, cost in edges if one not in beyond and other in beyond]
    return sum(float("inf") if cost is None else cost for cost in cut)


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_cheapest_with_the_fewest_places(seed: int) -> None:
    edges = network(seed)
    places = sorted({place for edge in edges for place in edge[:2]} - {FIRST, LAST})
    sides = [frozenset(side) for size in range(len(places) + 1) for side in itertools.combinations(places, size)]
    costs = {side: crossing(edges, set(side)) for side in sides}
    cheapest = [side for side in sides if costs[side] == min(costs.values())]
    assert behind(edges) == min(cheapest, key=len)


def test_what_must_not_be_cut_is_told() -> None:
    with pytest.raises(nx.NetworkXUnbounded):
        behind([(FIRST, "a", None), ("a", "b", None), ("b", LAST, None)])
