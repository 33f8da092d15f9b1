"""What tracing says of a node beside its value, which is in torch's `meta["val"]`: one frozen record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

_KEY = "autotp"
# What a rule calls the reading of a value from a Python object, and what sets an attribute or an item of one.
READ, SETS = "opaque.read", frozenset({"opaque.__setattr__", "opaque.__setitem__"})


@dataclass(frozen=True)
class Annotation:
    """What tracing says of a node.

    Attributes:
        module: of an operator, the path of the submodule that it runs in.
        parameter: whether an attribute is a parameter.
        gradient: whether an attribute, an input, or the result of a call of a Python object may receive a gradient.
        opaque: what a rule calls a call of a Python object; None for every other node.
        owner: the package that such an object's class is of. holding: those of the objects in it.
        writes: of an operator that writes in place, every value that shares the memory; None for every other.
        data: of a `detach`, whether it is a parameter's `.data`, of whose writes autograd does not hear.
    """

    module: str = ""
    parameter: bool = False
    gradient: bool = False
    opaque: str | None = None
    owner: str | None = None
    holding: frozenset[str] = frozenset()
    writes: tuple[torch.fx.Node, ...] | None = None
    data: bool = False


_NOTHING = Annotation()


def annotation(node: torch.fx.Node) -> Annotation:
    """What tracing says of a node; the copy of a node has that of the original."""
    found: Annotation = node.meta.get(_KEY, _NOTHING)
    return found


def annotate(node: torch.fx.Node, **changes: Any) -> None:
    """Say more of a node; the copies that were made of it before keep what was said."""
    node.meta[_KEY] = replace(annotation(node), **changes)


def copied(graph: torch.fx.Graph) -> tuple[torch.fx.Graph, dict[torch.fx.Node, torch.fx.Node]]:
    """A copy that can be changed without touching the graph, and for each of its nodes, but the output, the copy of it."""
    copy, nodes = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    copy.output(copy.graph_copy(graph, nodes))
    for node, own in nodes.items():
        if (writes := annotation(node).writes) is not None:
            annotate(own, writes=tuple(nodes[shared] for shared in writes if shared in nodes))
    return copy, nodes
