"""Results of a unit that share memory: a write into one is seen in the other, and what is gathered has memory of its own."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence, Set
from typing import Any

import torch

from ..axes.call import may_be_view
from ..errors import UnsoundPlanError
from .typed import TypedGraph, is_parameter


def check_results(typed: TypedGraph, results: Sequence[Any], held: Set[torch.fx.Node]) -> None:
    """Raises UnsoundPlanError if one of the results, which leave a unit as slices where they are `held`, shares memory with
    another one, or with a parameter."""
    ways = {node: list(views_to(node)) for node in results if isinstance(node, torch.fx.Node)}
    for node, way in ways.items():
        if node in held and is_parameter(way[-1]):
            raise UnsoundPlanError(
                f"{node.name} is in the memory of {way[-1].target}, and would be gathered from slices"
            )
    for (one, way), (other, second) in itertools.combinations(ways.items(), 2):
        if (one in held or other in held) and way[-1] is second[-1] and not _are_apart(typed, way, second):
            raise UnsoundPlanError(f"{one.name} and {other.name} share memory, and would be gathered from slices")


def views_to(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A value, what it is a view or an entry of, and so on."""
    yield node
    while (
        node.op == "call_function" and node.all_input_nodes and (may_be_view(node) or node.target is operator.getitem)
    ):
        node = node.all_input_nodes[0]
        yield node


def base_of(node: torch.fx.Node) -> torch.fx.Node:
    """What a value is a view or an entry of in the end."""
    return list(views_to(node))[-1]


def _are_apart(typed: TypedGraph, one: Sequence[torch.fx.Node], other: Sequence[torch.fx.Node]) -> bool:
    """Returns if two values that are views of one are known to be of different elements: where their ways part, each takes other
    ones than the other."""
    steps = [(a, b) for a, b in zip(reversed(one), reversed(other), strict=False) if a is not b]
    if not steps:
        return False
    first, second = (_taken(typed, node) for node in steps[0])
    if first is None or second is None or first[0] != second[0]:
        return False
    return first[1].stop <= second[1].start or second[1].stop <= first[1].start


def _taken(typed: TypedGraph, node: torch.fx.Node) -> tuple[object, range] | None:
    """Along which dim a view takes which positions, or which of the parts of a list; None where it is another view."""
    if node.target is operator.getitem:
        part = node.args[1]
        return ("parts", range(part, part + 1)) if isinstance(part, int) else None
    return typed.facts[node].takes if node in typed.facts else None
