"""Pass: make a node of every step of a placement.

Legal because every edge reads what the placement says it reads, which the certificate then judges by the nodes alone.
"""

from __future__ import annotations

import torch

from ..placement.place import Placement
from ..placement.placed import placed_as, say
from ..placement.steps import Step, Value
from .functions import function_of
from .join import join_calls


def insert_steps(placement: Placement, ranks: torch.fx.Node) -> None:
    """Insert a node for every step; consumers read the inserted nodes afterwards, and what is sent together is one call."""
    graph, steps, made = placement.typed.graph, placement.steps, dict[Step, torch.fx.Node]()

    def node_of(value: Value) -> torch.fx.Node:
        if isinstance(value, torch.fx.Node):
            return value
        if value not in made:
            made[value] = _made(graph, value, node_of(value.value), ranks)
        return made[value]

    for step in steps:
        node_of(step)
    for (consumer, operand), step in steps.reads.items():
        consumer.replace_input_with(operand, made[step])
    for size, read in steps.lengths.items():
        size.args = read
    begun = {step.value for step in steps}
    for marker, collected in steps.collected.items():
        is_gathered = isinstance(collected, Step) and collected.about is marker
        if not is_gathered and marker in begun:
            continue  # what is cut behind the marker are axes that the value before it has not
        node = node_of(collected)
        if is_gathered:
            say(node, fact=placed_as(marker).fact, marks=placed_as(marker).origin)
        marker.replace_all_uses_with(node)
    join_calls(graph, [[made[step] for step in call] for call in placement.calls if len(call) > 1], ranks)


def _made(graph: torch.fx.Graph, step: Step, value: torch.fx.Node, ranks: torch.fx.Node) -> torch.fx.Node:
    """The node of a step: right after the value it takes, or right before its only consumer."""
    with graph.inserting_after(value) if step.before is None else graph.inserting_before(step.before):
        node = graph.call_function(function_of(step.record), (value, *step.others, ranks))
    node.meta["val"] = value.meta["val"]
    say(node, transition=step.record)
    return node
