"""Inference: one pass over a graph, every operator adding its equations."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .annotation import annotation
from .call import Call
from .facts import Fact, Typing
from .record import Operator
from .rules import rule_for, rule_for_write, unruled
from .sizes import Sizes
from .term import axis


def infer(graph: torch.fx.Graph, rules: Mapping[str, Operator]) -> Typing:
    """The terms of every value of a graph whose nodes carry `meta["val"]`.

    A node that writes into shared memory keeps all of it whole, but for a parameter that it writes element by element.
    Values that are no tensors (sizes, handles) have no entry. Operators without a rule are listed in `unruled`, with the
    operator's name by node.
    """
    sizes, facts, missing = Sizes(), dict[torch.fx.Node, Fact](), dict[str, str]()
    writes: list[Call] = []
    for node in graph.nodes:
        value, in_place = node.meta.get("val"), annotation(node).writes is not None
        if node.op in ("placeholder", "get_attr"):
            if isinstance(value, torch.Tensor):
                facts[node] = Fact((tuple(axis(sizes(size)) for size in value.shape),))
        elif node.op == "call_function" and (in_place or _has_tensor(value) or _keeps_tensors(node, facts)):
            call = Call(node, facts, sizes)
            rule = (rule_for_write(call, rules) or unruled) if in_place else rule_for(call, rules)
            if rule is unruled:
                missing[node.name] = call.name
                if in_place:
                    writes.append(call)
            facts[node] = rule(call)
    for call in writes:
        for shared in facts.keys() & set(annotation(call.node).writes or ()):
            for dims in facts[shared].outputs:
                call.pin(dims, "it writes into memory that other values share")
    return Typing(facts, missing)


def _keeps_tensors(node: torch.fx.Node, facts: Mapping[torch.fx.Node, Fact]) -> bool:
    """Returns if an opaque object is given tensors here, whatever it gives back."""
    return annotation(node).opaque is not None and any(operand in facts for operand in node.all_input_nodes)


def _has_tensor(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(isinstance(part, torch.Tensor) for part in value)
    return isinstance(value, torch.Tensor)
