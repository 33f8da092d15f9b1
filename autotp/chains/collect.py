"""Chains that end where they begin: a parameter is cut alone, and what it makes is collected right after it."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ..axes.call import is_tensor
from ..axes.facts import Typing
from ..axes.operators.collect import collect
from ..axes.term import axes_of, resolve
from .match import Proposal
from .rules import ChainRule


def mark_collected(graph: torch.fx.Graph, names: Collection[str]) -> None:
    """Put a marker behind every operator that reads one of these parameters as its weight."""
    for weight in [node for node in graph.nodes if node.op == "get_attr" and node.target in names]:
        for node in list(weight.users):
            if not is_tensor(node) or any(user.target is collect for user in node.users):
                continue
            users = list(node.users)
            with graph.inserting_after(node):
                marker = graph.call_function(collect, (node,))
            marker.meta = {"val": node.meta["val"]}
            for user in users:
                user.replace_input_with(node, marker)


def marked_proposals(graph: torch.fx.Graph, typing: Typing, rule: ChainRule) -> list[Proposal]:
    """One proposal for every marker: the whole last dim before it as one axis."""
    proposals = []
    for marker in [node for node in graph.nodes if node.target is collect]:
        source = typing.facts[marker].operands[0]
        term = resolve(typing.dims(source)[-1])
        axes = tuple(axes_of(term))
        parameters = tuple(
            str(operand.target) for operand in typing.facts[source].operands if operand.meta.get("parameter")
        )
        if parameters and len(axes) == 1 and not axes[0].pins:
            proposals.append(Proposal(rule, marker.name, axes, parameters))
    return proposals
