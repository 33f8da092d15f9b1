"""Chains that end where they begin: a parameter is cut alone, and what it makes is collected right after it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from ..axes.annotation import annotation
from ..axes.call import is_tensor, operator_name
from ..axes.facts import Fact, Typing
from ..axes.operators.collect import collect
from ..axes.term import Axis, axes_of, axes_of_dims, resolve
from .match import Proposal, weights_of
from .rules import ChainRule, ChainRules


def mark_collected(graph: torch.fx.Graph, names: Collection[str]) -> None:
    """Put a marker behind every operator that reads one of these parameters as its weight, and gives more than a number."""
    for weight in [node for node in graph.nodes if node.op == "get_attr" and node.target in names]:
        for node in list(weight.users):
            if not is_tensor(node) or not node.meta["val"].dim() or any(user.target is collect for user in node.users):
                continue
            users = list(node.users)
            with graph.inserting_after(node):
                marker = graph.call_function(collect, (node,))
            marker.meta = {"val": node.meta["val"]}
            for user in users:
                user.replace_input_with(node, marker)


def marked(graph: torch.fx.Graph) -> tuple[str, ...]:
    """The parameters that markers stand for, cut or not: a marker parts the axes on its two sides, and where a cut was chosen
    among such axes, it must be there again whenever that cut is placed."""
    found = [node.args[0].all_input_nodes for node in graph.nodes if node.target is collect]
    weights = [node for nodes in found for node in nodes if node.op == "get_attr" and annotation(node).parameter]
    return tuple(dict.fromkeys(str(node.target) for node in weights if len(node.meta["val"].shape) > 1))


# A product has few rows if the largest result of its unit has this many times as many: positions, and not a few streams beside
# each other.
_FEW = 8


def alone(
    graph: torch.fx.Graph, typing: Typing, rules: ChainRules, known: Sequence[Proposal], *, few: bool
) -> Iterator[Proposal]:
    """A proposal for every product that no known one covers, whatever reads what it makes; with `few` for those of few rows."""
    covered = {name for proposal in known for name in proposal.parameters}
    results = [node for node in next(iter(reversed(graph.nodes))).all_input_nodes if node in typing.facts]
    most = max((_rows(typing.facts[node]) for node in results), default=0)
    for rule in [rule for rule in rules.rules if rule.alone and rule.few == few]:
        for node, fact in typing.facts.items():
            # Read as they are: behind a view of a weight the marker would stand for the view.
            weights = {str(weight.target) for weight in weights_of(node, typing) if weight in fact.operands}
            if operator_name(node.target) not in rules.classes[rule.start] or not weights or weights & covered:
                continue
            is_few = len(fact.contracts) == 1 and _FEW * _rows(fact) <= most
            if (is_few or not few) and _brings(node, fact, typing, only=few):
                yield Proposal(rule, node.name, (), tuple(sorted(weights)))


def _rows(fact: Fact) -> int:
    return max((math.prod(term.size for term in dims[:-1]) for dims in fact.outputs), default=0)


def _brings(node: torch.fx.Node, fact: Fact, typing: Typing, *, only: bool) -> bool:
    """Returns if the last dim of a product (the channels, in a convolution) is one of its only weight's; with `only` that of
    nothing else that it reads."""
    made = axes_of_dims([fact.dims[fact.brought]] if fact.dims else [])
    weights = weights_of(node, typing)
    others = [operand for operand in fact.operands if not annotation(operand).parameter]
    dims = [dims for operand in others for dims in typing.facts[operand].outputs if len(dims) > 1]
    is_own = len(weights) == 1 and bool(made) and made <= axes_of_dims(typing.dims(weights[0]))
    return is_own and not (only and any(made <= axes_of_dims(each) for each in dims))


def through(graph: torch.fx.Graph, typing: Typing) -> frozenset[str]:
    """The parameters whose markers separate nothing: something else makes the dim behind one the dim before it (the value is
    added to what the product reads, say), so that whoever cuts it cuts it on both sides."""
    found: set[str] = set()
    for marker in [node for node in graph.nodes if node.target is collect]:
        source = typing.facts[marker].operands[0]
        brought = typing.facts[source].brought
        before, behind = (axes_of_dims([typing.dims(node)[brought]]) for node in (source, marker))
        if before & behind:
            found |= {str(node.target) for node in source.all_input_nodes if node.op == "get_attr"}
    return frozenset(found)


def marked_proposals(graph: torch.fx.Graph, typing: Typing, rules: Mapping[str, ChainRule]) -> list[Proposal]:
    """One proposal for what a parameter makes, by its rule: the whole dim that is another behind the marker, as one axis. In a
    loop all markers of a parameter are of that axis."""
    proposals: dict[tuple[tuple[Axis, ...], tuple[str, ...]], Proposal] = {}
    for marker in [node for node in graph.nodes if node.target is collect]:
        source = typing.facts[marker].operands[0]
        axes = tuple(axes_of(resolve(typing.dims(source)[typing.facts[source].brought])))
        parameters = tuple(
            str(operand.target) for operand in typing.facts[source].operands if annotation(operand).parameter
        )
        if parameters and len(axes) == 1 and not axes[0].pins:
            rule = next(rules[name] for name in parameters if name in rules)
            proposals.setdefault((axes, parameters), Proposal(rule, marker.name, axes, parameters))
    return list(proposals.values())
