"""The cheapest cut of a network, part by part: what nothing connects but the two ends is solved by itself, and only once.

The placements of a unit under different cuts differ in few parts of their networks.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from typing import Any, TypeAlias

import networkx as nx
from networkx.algorithms.flow import edmonds_karp
from networkx.utils import UnionFind

# A place of the network has the same name whichever copy of a graph it is of.
Place: TypeAlias = Hashable
# What it costs to cut each edge; None if it must not be cut.
Edges: TypeAlias = Mapping[tuple[Place, Place], int | None]

FIRST, LAST = "first", "last"
_KEPT = 1 << 14  # parts: those of a few units


def behind(edges: Edges) -> set[Place]:
    """The places on the side of `LAST` in the cheapest cut between `FIRST` and `LAST`; of several in that with the fewest.

    Raises NetworkXUnbounded if some way from one to the other must not be cut.
    """
    joined: Any = UnionFind()
    needed = {edge: cost for edge, cost in edges.items() if cost != 0 and edge[0] != LAST and edge[1] != FIRST}
    for edge in needed:
        joined.union(*(place for place in edge if place not in (FIRST, LAST)))
    parts: dict[Place, list[tuple[Place, Place, int | None]]] = {}
    for (one, other), cost in needed.items():
        parts.setdefault(joined[other if one == FIRST else one], []).append((one, other, cost))
    return {place for part in parts.values() for place in _behind_in(frozenset(part))}


@functools.lru_cache(_KEPT)
def _behind_in(part: frozenset[tuple[Place, Place, int | None]]) -> frozenset[Place]:
    if all(other != LAST for _, other, _ in part):
        return frozenset()
    network: Any = nx.DiGraph()
    network.add_nodes_from((FIRST, LAST))
    network.add_edges_from((one, other, {} if cost is None else {"capacity": cost}) for one, other, cost in part)
    _, (_, found) = nx.minimum_cut(network, FIRST, LAST, flow_func=edmonds_karp)
    return frozenset(found) - {LAST}
