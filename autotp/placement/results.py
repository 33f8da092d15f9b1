"""What a unit gives that shares memory: a write into one is seen in the other, and what is gathered has memory of its own."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence, Set

import torch

from ..axes.annotation import READ, SETS, annotation
from ..axes.call import may_be_view
from ..errors import UnsoundPlanError
from .typed import TypedGraph, is_parameter


def check_results(typed: TypedGraph, held: Set[torch.fx.Node]) -> None:
    """Raises UnsoundPlanError if something that a unit gives, as a result or in an object, which is a slice where it is `held`,
    shares memory with something else that it gives, with a parameter, or with what an object had before."""
    ways = {node: list(views_to(node)) for node in _given(typed.graph)}
    for node, way in ways.items():
        if node in held and is_parameter(way[-1]):
            raise UnsoundPlanError(
                f"{node.name} is in the memory of {way[-1].target}, and would be gathered from slices"
            )
        if node in held and annotation(way[-1]).opaque == READ:
            raise UnsoundPlanError(
                f"{node.name} is what an object holds already, and would be gathered from slices twice"
            )
    for (one, way), (other, second) in itertools.combinations(ways.items(), 2):
        if (one in held or other in held) and way[-1] is second[-1] and not _are_apart(typed, way, second):
            raise UnsoundPlanError(f"{one.name} and {other.name} share memory, and would be gathered from slices")


def _given(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """What a unit gives: its results, and what it leaves in objects."""
    for node in graph.nodes:
        if node.op == "output" or annotation(node).opaque in SETS:
            yield from node.all_input_nodes


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
