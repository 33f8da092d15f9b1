"""Programs that are wrong in one place: every node that placement puts between values is removed, doubled, moved one node later,
or given other mesh factors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from autotp.axes.annotation import annotate, annotation
from autotp.axes.layout import Cut, Factor, Factors, Layout, Leaf
from autotp.placement.placed import placed_as, say
from autotp.placement.transition import Joined, Transition
from autotp.rewrite.functions import function_of

Mutant = tuple[str, torch.fx.Graph]
# Four ranks as two by two.
FIRST, SECOND = Factor(2, 2), Factor(2, 1)
CHOICES: tuple[Factors, ...] = ((FIRST, SECOND), (FIRST,), (SECOND,))


def transitions(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if placed_as(node).transition is not None]


def mutants(graph: torch.fx.Graph) -> Iterator[Mutant]:
    """All of them, by what was done to which node; the graph stays as it is."""
    for number, node in enumerate(transitions(graph)):
        name = f"{node.name} ({placed_as(node).transition.does})"
        for what, change in (("removed", remove), ("doubled", double), ("moved", move)):
            copied = copy_of(graph)
            if change(copied, transitions(copied)[number]):
                yield f"{name} {what}", checked(copied)
        for record in others(placed_as(node).transition):
            copied = copy_of(graph)
            give(transitions(copied)[number], record)
            yield f"{name} over {text(record.over)}, summed over {text(record.summed)}", checked(copied)


def text(over: Factors) -> str:
    return ",".join(map(str, over)) or "none"


def checked(graph: torch.fx.Graph) -> torch.fx.Graph:
    graph.lint()
    return graph


def copy_of(graph: torch.fx.Graph) -> torch.fx.Graph:
    copied, nodes = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    copied.output(copied.graph_copy(graph, nodes))
    for node in copied.nodes:
        if annotation(node).writes is not None:
            annotate(node, writes=tuple(nodes[shared] for shared in annotation(node).writes if shared in nodes))
    return copied


def remove(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    node.replace_all_uses_with(source_of(node))
    graph.erase_node(node)
    return True


def double(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    users = list(node.users)
    again(graph, node, node, users)
    return True


def move(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    """Whoever reads the node reads what it is made from, and the node is made from what they give."""
    behind = [user for user in node.users if user.op != "output" and isinstance(user.meta.get("val"), torch.Tensor)]
    others = [user for user in node.users if placed_as(user).joined is not None]
    for user in [*behind, *others]:
        user.replace_input_with(node, source_of(node))
    for user in behind:
        again(graph, node, user, list(user.users))
    if not node.users:
        graph.erase_node(node)
    return bool(behind)


def again(graph: torch.fx.Graph, node: torch.fx.Node, value: torch.fx.Node, users: list[torch.fx.Node]) -> None:
    """What a node does, by itself, behind a value."""
    record = placed_as(node).transition.alone
    more = node.args[1:-1] if placed_as(node).transition.number is None else ()
    with graph.inserting_after(value):
        made = graph.call_function(function_of(record), (value, *more, ranks_of(graph)))
    made.meta["val"] = value.meta["val"]
    say(made, transition=record, marks=placed_as(node).marks, fact=placed_as(node).fact)
    for user in users:
        user.replace_input_with(value, made)


def give(node: torch.fx.Node, record: Transition) -> None:
    """Let a node do something else; of one call for several, all of them."""
    nodes = [node]
    if record.number is not None:
        call: Any = node.args[1]
        nodes = sorted(call.users, key=lambda part: placed_as(part).transition.number)
    for part in nodes:
        own = placed_as(part).transition
        dims = record.dims if part is node else tuple(swapped(own.dims)) if record.dims != own.dims else own.dims
        say(part, transition=replace(own, over=record.over, summed=record.summed, dims=dims))
        part.target = function_of(placed_as(part).transition)
    if record.number is not None:
        say(call, joined=Joined(tuple(placed_as(part).transition.alone for part in nodes)))
        call.target = function_of(placed_as(call).joined)


def others(record: Transition) -> Iterator[Transition]:
    """The same over other mesh factors."""
    if not record.dims or record.does == "enter_part":
        for over in CHOICES:
            if ranks_in(over) != ranks_in(record.over):
                yield replace(record, over=over, dims=tuple((d, layout, over) for d, layout, _ in record.dims))
    elif (dims := tuple(swapped(record.dims))) != record.dims:
        yield replace(record, over=tuple(map(swap, record.over)), dims=dims)
    if record.does in ("gather", "gather_positions"):
        for summed in ((), *CHOICES):
            if ranks_in(summed) != ranks_in(record.summed):
                yield replace(record, summed=summed)


def ranks_in(over: Factors) -> frozenset[Factor]:
    return frozenset(CHOICES[0]) if over == (Factor(4, 1),) else frozenset(over)


def swap(factor: Factor) -> Factor:
    return {FIRST: SECOND, SECOND: FIRST}.get(factor, factor)


def swapped(dims: Any) -> Iterator[Any]:
    for dim, layout, over in dims:
        yield dim, in_layout(layout), tuple(map(swap, over))


def in_layout(layout: Layout) -> Layout:
    if isinstance(layout, Leaf):
        cut = layout.cut
        return layout if cut is None else replace(layout, cut=Cut(tuple(map(swap, cut.over)), cut.padded))
    return replace(layout, parts=tuple(map(in_layout, layout.parts)))


def source_of(node: torch.fx.Node) -> torch.fx.Node:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    return source


def ranks_of(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(node for node in graph.find_nodes(op="placeholder") if node.target == "ranks")
