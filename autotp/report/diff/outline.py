"""Outlines: steps that belong together become one block, so that a block of a model fits a screen.

Joined are neighbours in one module of which a rank holds alike, where that leaves the blocks a graph without cycles. What
a reader looks for is never joined: inputs, parameters, collectives, cut layers, attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import networkx as nx

from .data import Step


def number_blocks(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps with the numbers of their blocks, counted from one in order of first appearance."""
    graph = _graph(steps)
    members = {step.name: step.name for step in steps}
    by_name = {step.name: step for step in steps}
    for source, target in list(graph.edges):
        first, second = members[source], members[target]
        if first != second and _alike(by_name[source], by_name[target]) and not _detour(graph, first, second):
            nx.contracted_nodes(graph, first, second, self_loops=False, copy=False)
            for name, member in members.items():
                members[name] = first if member == second else member
    numbers: dict[str, int] = {}
    for step in steps:
        numbers.setdefault(members[step.name], len(numbers) + 1)
    return tuple(replace(step, block=numbers[members[step.name]]) for step in steps)


def _graph(steps: tuple[Step, ...]) -> Any:
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(step.name for step in steps)
    graph.add_edges_from(edge for step in steps for edge in _edges(step))
    return graph


def _edges(step: Step) -> Iterator[tuple[str, str]]:
    for value in (step.before, step.after):
        for source in value.inputs if value else ():
            yield source, step.name


def _alike(first: Step, second: Step) -> bool:
    return all(step.role == "operator" and step.change in ("same", "shape") for step in (first, second)) and (
        (first.module, first.state, first.axes) == (second.module, second.state, second.axes)
    )


def _detour(graph: Any, first: str, second: str) -> bool:
    """Returns if another way leads from one block to the other: joined, they would be before and behind it."""
    ways = (other for other in graph.successors(first) if other != second)
    return any(nx.has_path(graph, other, second) for other in ways)
