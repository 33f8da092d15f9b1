"""Pass: what is sent together is one call.

Legal because the placement joins only collectives of which none waits for another. Nodes that read a result move behind the
call; those that must keep an order among each other do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import networkx as nx
import torch

from ..axes.layout import ordered
from ..errors import PlacementError
from ..placement.calls import Sent, Together, keeps_order
from ..runtime import together
from ..runtime.together import Place

# An inserted collective; of a gather, where.
Inserted: TypeAlias = tuple[torch.fx.Node, Place | None]


def join_calls(
    graph: torch.fx.Graph,
    calls: Sequence[Together],
    inserted: Mapping[Sent, Inserted],
    ranks: torch.fx.Node,
) -> None:
    """Let one call give the results of all collectives that go together. A collective's node stays where it is read, and hands
    on its part of the results; its first argument is still the value that it is about."""
    joined = [call for call in calls if len(call) > 1]
    for call in joined:
        _join(graph, call, [inserted[sent] for sent in call], ranks)
    if joined:
        _put_in_order(graph)


def _join(graph: torch.fx.Graph, call: Together, inserted: Sequence[Inserted], ranks: torch.fx.Node) -> None:
    nodes = [node for node, _ in inserted]
    with graph.inserting_before(nodes[0]):
        function = _function(call[0], [place for _, place in inserted])
        results = graph.call_function(function, (tuple(node.args[0] for node in nodes), ranks))
    results.meta = {"collective": nodes[0].meta["collective"]}
    for number, node in enumerate(nodes):
        node.target, node.args = _part(number), (node.args[0], results)
        node.meta["together"] = tuple(other for other in nodes if other is not node)


def _function(sent: Sent, places: Sequence[Place | None]) -> Callable[..., Any]:
    over = ordered(sent.over)
    if sent.kind == "all_gather":
        summed = bool(sent.scattered)

        def gather_together(values: Any, ranks: Any) -> Any:
            return together.gather_together(values, ranks, over, places, summed)  # type: ignore[arg-type]

        return gather_together
    if sent.phase == "backward":

        def enter_together(values: Any, ranks: Any) -> Any:
            return together.enter_together(values, ranks, over, sent.of)

        return enter_together

    def reduce_together(values: Any, ranks: Any) -> Any:
        return together.reduce_together(values, ranks, over)

    return reduce_together


def _part(number: int) -> Callable[..., Any]:
    def part(value: Any, results: Any) -> Any:
        return results[number]

    return part


def _put_in_order(graph: torch.fx.Graph) -> None:
    """Move nodes as little as possible so that each comes after what it reads. Inputs come first.

    Raises PlacementError if there is no such order, which the placement has made sure of.
    """
    nodes, in_order = list(graph.nodes), keeps_order(graph)
    order: Any = nx.DiGraph((source, node) for node in nodes for source in node.all_input_nodes)
    order.add_nodes_from(nodes)
    order.add_edges_from(itertools.pairwise(node for node in nodes if node in in_order))
    rank = {node: (node.op not in ("placeholder", "get_attr"), number) for number, node in enumerate(nodes)}
    try:
        *others, output = nx.lexicographical_topological_sort(order, key=lambda node: (node.op == "output", rank[node]))
    except nx.NetworkXUnfeasible:
        raise PlacementError(
            "a collective of several values waits for itself: the placement must not join them"
        ) from None
    for node in others:
        output.prepend(node)
