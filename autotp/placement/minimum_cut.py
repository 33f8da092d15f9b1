"""The cheapest cut of a network, part by part: what nothing connects but the two ends is solved by itself, and only once.

The placements of a unit under different cuts differ in few parts of their networks.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov
from networkx.utils import UnionFind

# A place of the network has the same name whichever copy of a graph it is of.
Place: TypeAlias = Hashable
# From where to where, and what it costs to cut it; None if it must not be cut.
Edge: TypeAlias = tuple[Place, Place, int | None]

FIRST, LAST = "first", "last"
_KEPT = 1 << 14  # parts: those of a few units


def behind(edges: Iterable[Edge]) -> set[Place]:
    """The places on the side of `LAST` in the cheapest cut between `FIRST` and `LAST`; of several in that with the fewest.

    Raises NetworkXUnbounded if some way from one to the other must not be cut.
    """
    joined: Any = UnionFind()
    needed = [edge for edge in edges if edge[2] != 0 and edge[0] != LAST and edge[1] != FIRST]
    for one, other, _ in needed:
        if one != FIRST and other != LAST:
            joined.union(one, other)
    parts: dict[Place, list[Edge]] = {}
    for edge in needed:
        parts.setdefault(joined[edge[1] if edge[0] == FIRST else edge[0]], []).append(edge)
    return {place for part in parts.values() for place in _behind_in(frozenset(Counter(part).items()))}


@functools.lru_cache(_KEPT)
def _behind_in(part: frozenset[tuple[Edge, int]]) -> frozenset[Place]:
    """The same of one part, each edge so many times."""
    if all(other != LAST for (_, other, _), _ in part):
        return frozenset()
    costs: dict[tuple[Place, Place], float] = {}
    for (one, other, cost), times in part:
        costs[one, other] = costs.get((one, other), 0) + (math.inf if cost is None else times * cost)
    network: Any = nx.DiGraph()
    network.add_nodes_from((FIRST, LAST))
    network.add_edges_from((*edge, {} if cost == math.inf else {"capacity": cost}) for edge, cost in costs.items())
    _, (_, found) = nx.minimum_cut(network, FIRST, LAST, flow_func=boykov_kolmogorov)
    return frozenset(found) - {LAST}
