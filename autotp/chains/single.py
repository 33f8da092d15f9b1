"""Axes that no chain rule proposes: each may be cut by itself, at the price of what adds it up, or puts it together again."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from ..axes.annotation import annotation
from ..axes.facts import Typing
from ..axes.term import Axis, axes_of_dims
from .match import Proposal
from .rules import ChainRule

RULE = ChainRule("axis", "")


def single_axes(graph: torch.fx.Graph, typing: Typing, known: Collection[Proposal]) -> Iterator[Proposal]:
    """A proposal for every axis of a matrix that nothing needs whole, and no known proposal has."""
    proposed = {axis for proposal in known for axis in proposal.axes}
    names: dict[Axis, list[str]] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and annotation(node).parameter and len(typing.dims(node)) > 1:
            for axis in sorted(axes_of_dims(typing.dims(node)) - proposed, key=lambda axis: axis.id):
                if axis.size > 1 and not axis.pins:
                    names.setdefault(axis, []).append(str(node.target))
    ends = _ends(graph, typing)
    for axis, parameters in names.items():
        if axis in ends:
            yield Proposal(RULE, ends[axis], (axis,), tuple(dict.fromkeys(parameters)))


def _ends(graph: torch.fx.Graph, typing: Typing) -> dict[Axis, str]:
    """Where each axis ends first: the name of what sums over it or picks its parts, else of the result that has it."""
    ends: dict[Axis, str] = {}
    for node, fact in typing.facts.items():
        picked = () if fact.pick is None else (fact.pick.choice,)
        for axis in axes_of_dims((*fact.contracts, *picked)):
            ends.setdefault(axis, node.name)
    for node in next(iter(reversed(graph.nodes))).all_input_nodes:
        if node in typing.facts:
            for dims in typing.facts[node].outputs:
                for axis in axes_of_dims(dims):
                    ends.setdefault(axis, node.name)
    return ends
