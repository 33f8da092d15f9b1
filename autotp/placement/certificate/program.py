"""What a program says of its nodes: what each reads, what a node between values does, which values lie in one memory."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from ...axes.annotation import annotation
from ...axes.call import is_tensor, named_arguments, writes_aside, written_by
from ...axes.facts import Fact
from ...axes.layout import Factors
from ..placed import fact_of, placed_as, transition_of
from ..transition import Joined, Transition
from .values import Illegal, Value


def shared_memory(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """For what is in memory that is written, one node that stands for all in that memory."""
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        if (writes := annotation(node).writes) is None:
            continue
        together = {*writes} if writes_aside(node) else {node, *writes, *_written_through(node, writes)}
        one = node if node in together else writes[0]
        for other in {found.get(each, each) for each in together}:
            found |= {each: one for each, own in found.items() if own is other}
        found |= dict.fromkeys(together, one)
    return found


def _written_through(writer: torch.fx.Node, writes: tuple[torch.fx.Node, ...]) -> Iterator[torch.fx.Node]:
    """The nodes between values whose results are written into, by way of views perhaps: they are that memory, and no copy."""
    node = next(iter(written_by(writer)), writer.args[0])
    while isinstance(node, torch.fx.Node) and (placed_as(node).collective is not None or node in writes):
        if placed_as(node).collective is not None:
            yield node
        node = node.args[0] if node.args else None


def work_of(node: torch.fx.Node) -> tuple[torch.fx.Node, Transition, list[torch.fx.Node]]:
    """The value that a node is about, what it does, and what else it reads: of one call for several, what that call says."""
    record, args = transition_of(node), cast(Any, node.args)
    if record.number is None:
        source, *others, _ = args
        return source, record, others
    value, call = args
    joined = placed_as(call).joined
    if joined is None or record.number >= len(joined.parts):
        raise Illegal(f"hands on a result of {call}, which is no call for several")
    source, own = call.args[0][record.number], joined.parts[record.number]
    alike = {(part.does, part.over, part.of, part.summed) for part in joined.parts}
    in_part = own.summed and set(own.summed) != set(own.over)  # a call for several sums over all its ranks, or none
    if source is not value or own != record.alone or len(alike) > 1 or in_part:
        raise Illegal(f"hands on a result of {call} that is not what it says")
    return source, own, []


def factors_of(record: Transition | Joined) -> Iterator[Factors]:
    """All mesh factors that a record speaks of."""
    for part in record.parts if isinstance(record, Joined) else (record,):
        yield part.over
        yield part.summed
        yield from (over for _, _, over in part.dims)


def operands_of(node: torch.fx.Node, fact: Fact) -> list[tuple[torch.fx.Node, torch.fx.Node | None]]:
    """Each operand as inference knew it, with the node that is read in its place: none for what a layer reads of its own."""
    if node.target is operator.getitem:
        return [(fact.operands[0], cast(torch.fx.Node, node.args[0]))]
    given = [value for value in pytree.tree_leaves(tuple(named_arguments(node).values())) if is_tensor(value)]
    own = [_is_of_layer(node, operand) for operand in fact.operands]
    if fact.operands and len(given) != own.count(False):
        raise Illegal(f"reads {len(given)} values, where it is to read {own.count(False)}")
    rest = iter(given)
    return [(operand, None if inside else next(rest)) for operand, inside in zip(fact.operands, own, strict=True)]


def _is_of_layer(node: torch.fx.Node, operand: torch.fx.Node) -> bool:
    return (
        node.op == "call_module"
        and operand.op == "get_attr"
        and str(operand.target).rpartition(".")[0] == str(node.target)
    )


def check_name(value: Value, wanted: torch.fx.Node) -> None:
    """Raises Illegal if a value is not the one that inference knew in its place."""
    if value.name not in _names(wanted):
        raise Illegal(f"reads {value.name}, where it is to read {placed_as(wanted).origin}")


def _names(node: torch.fx.Node) -> set[str]:
    """What a value may be called: a marker where a value is gathered, which may be whole, is that value too."""
    fact = fact_of(node)
    more = _names(fact.operands[0]) if fact.collects else set[str]()
    return {placed_as(node).origin} | more


def title_of(node: torch.fx.Node) -> str:
    """A node of the program and its operator, for an error."""
    if node.op == "output":
        return "the output"
    operator_of = node.target if isinstance(node.target, torch._ops.OpOverload | str) else node.target.__name__
    return f"{node.name} ({operator_of})"
