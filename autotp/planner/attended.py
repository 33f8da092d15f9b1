"""What attention reads of its keys and values: those of a core, or of products on both sides of a softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ..axes.annotation import annotation
from ..axes.facts import Fact
from ..axes.term import axes_of

Facts = Mapping[torch.fx.Node, Fact]


def attended(node: torch.fx.Node, facts: Facts) -> tuple[torch.fx.Node, ...]:
    """The keys and values that an attention core reads, or products before and behind a softmax; nothing for other nodes."""
    if facts[node].attends:
        return facts[node].operands[1:3]
    if node.op != "call_function" or not _is_softmax(node, facts[node]):
        return ()
    before, behind = _scores(node, facts), _weighted(node, facts)
    return () if before is None or behind is None else (before, behind)


def unrepeated(node: torch.fx.Node, facts: Facts) -> torch.fx.Node:
    """What a value is a repetition of, behind moves of its elements, as keys are repeated for several heads; else the value."""
    found = behind = node
    while behind.op == "call_function" and len(facts[behind].operands) == 1 and not facts[behind].contracts:
        is_repeated = bool(facts[behind].creates)
        (behind,) = facts[behind].operands
        if behind not in facts or len(facts[behind].outputs) > 1:
            break
        found = behind if is_repeated else found
    return found


def _is_softmax(node: torch.fx.Node, fact: Fact) -> bool:
    """Returns if an operator needs its last dim whole, sums over nothing, and has a derivative that its result alone decides."""
    if fact.gradient != "result" or fact.contracts or len(fact.outputs) != 1 or not fact.dims:
        return False
    return any(pin.node == node.name for axis in axes_of(fact.dims[-1]) for pin in axis.pins)


def _scores(node: torch.fx.Node, facts: Facts) -> torch.fx.Node | None:
    """The keys of the product whose result a softmax is of, behind steps that sum over nothing: a mask may be added to it, or
    choose from it."""
    waiting, seen = [node], {node}
    for each in waiting:
        for operand in facts[each].operands:
            if operand not in facts or operand in seen or operand.op != "call_function":
                continue
            if is_product(operand, facts):
                return factors(facts[operand])[1]
            if not facts[operand].contracts:
                seen.add(operand)
                waiting.append(operand)
    return None


def _weighted(node: torch.fx.Node, facts: Facts) -> torch.fx.Node | None:
    """What the first product that reads a softmax's result, behind steps that sum over nothing, reads beside it."""
    waiting, seen = [node], {node}
    for each in waiting:
        for user in _readers(each, facts):
            if is_product(user, facts):
                return next((other for other in factors(facts[user]) if other is not each), None)
            if user not in seen and not facts[user].contracts:
                seen.add(user)
                waiting.append(user)
    return None


def _readers(node: torch.fx.Node, facts: Facts) -> Iterator[torch.fx.Node]:
    return (user for user in node.users if user in facts)


def is_product(node: torch.fx.Node, facts: Facts) -> bool:
    """Returns if two values, none of which is a parameter, are multiplied and summed over."""
    fact = facts[node]
    return bool(fact.contracts) and len(factors(fact)) == 2 and not any(annotation(o).parameter for o in fact.operands)


def factors(fact: Fact) -> tuple[torch.fx.Node, ...]:
    """What a product multiplies: its last two operands, or all; before these may be one that is added (`baddbmm`)."""
    return fact.operands[-2:] if len(fact.operands) == 3 and _is_added(fact) else fact.operands


def _is_added(fact: Fact) -> bool:
    """Returns if the first of three operands is added to the product of the others: zero where it and one of them are."""
    return set(fact.zeros) == {frozenset({0, 1}), frozenset({0, 2})}
