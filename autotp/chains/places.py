"""Where in a graph an axis is."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import torch

from ..axes.facts import Fact, Typing
from ..axes.term import Axis, axes_of_dims


class Places:
    """Where each axis is: in a node's results, or in what it sums over."""

    def __init__(self, typing: Typing) -> None:
        self.order = {node: place for place, node in enumerate(typing.facts)}
        self.nodes: dict[Axis, list[torch.fx.Node]] = {}
        for node, fact in typing.facts.items():
            for axis in _axes_at(fact):
                self.nodes.setdefault(axis, []).append(node)

    def having(self, axes: AbstractSet[Axis]) -> list[torch.fx.Node]:
        """The nodes that have one of some axes, in their order."""
        return sorted({node for axis in axes for node in self.nodes.get(axis, ())}, key=self.order.__getitem__)


def _axes_at(fact: Fact) -> set[Axis]:
    """Every axis in a node's results and in what it sums over."""
    return {axis for dims in (*fact.outputs, fact.contracts) for axis in axes_of_dims(dims)}
