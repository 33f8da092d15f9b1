"""Pass: what is sent together is one call.

Legal because the placement joins only collectives of which none waits for another. Nodes that read a result move behind the
call; those that must keep an order among each other do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx as nx
import torch

from ..errors import PlacementError
from ..placement.calls import keeps_order
from ..placement.placed import say, transition_of
from ..placement.transition import Joined
from .functions import function_of


def join_calls(graph: torch.fx.Graph, calls: Sequence[Sequence[torch.fx.Node]], ranks: torch.fx.Node) -> None:
    """Let one call give the results of all nodes that go together. A node stays where it is read, and hands on its part of the
    results; its first argument is still the value that it is about."""
    for nodes in calls:
        _join(graph, nodes, ranks)
    if calls:
        _put_in_order(graph)


def _join(graph: torch.fx.Graph, nodes: Sequence[torch.fx.Node], ranks: torch.fx.Node) -> None:
    record = Joined(tuple(transition_of(node) for node in nodes))
    with graph.inserting_before(nodes[0]):
        results = graph.call_function(function_of(record), (tuple(node.args[0] for node in nodes), ranks))
    say(results, joined=record)
    for number, node in enumerate(nodes):
        part = replace(transition_of(node), number=number)
        node.target, node.args = function_of(part), (node.args[0], results)
        say(node, transition=part, together=tuple(other for other in nodes if other is not node))


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
