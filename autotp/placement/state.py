"""What forward placement finds: where values are slices and partial sums, and how every operator reads its operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from ..axes.layout import Cuts, Factor
from ..axes.term import Axis
from .routed import Routed
from .typed import factors_in


@dataclass(frozen=True)
class Use:
    """How a node reads an operand: reduced over mesh factors, then sliced along axes, then (backward) summed.

    Over the factors in `once` it reads a whole value as a partial sum, of which the first rank has all. A value that is
    `routed` it reads, before all that, with the rows of other ranks zero: as a partial sum.
    """

    reduce: frozenset[Factor] = frozenset()
    take: frozenset[Axis] = frozenset()
    once: frozenset[Factor] = frozenset()
    routed: Routed | None = None


PLAIN = Use()


@dataclass
class Flow:
    """The forward state of every value, and how every edge reads it."""

    cuts: Cuts
    held: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    partial: dict[torch.fx.Node, frozenset[Factor]] = field(default_factory=dict)
    routed: dict[torch.fx.Node, Routed] = field(default_factory=dict)
    zero: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    uses: dict[tuple[torch.fx.Node, torch.fx.Node], Use] = field(default_factory=dict)
    gathers: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    deferred: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    kept: dict[torch.fx.Node, frozenset[Axis]] = field(default_factory=dict)
    gradient: frozenset[torch.fx.Node] = frozenset()
    written: frozenset[torch.fx.Node] = frozenset()
    early: frozenset[torch.fx.Node] = frozenset()
    delayed: frozenset[str] = frozenset()
    products: set[str] = field(default_factory=set)
    shares: dict[torch.fx.Node, Fraction] = field(default_factory=dict)

    def use(self, consumer: torch.fx.Node, operand: torch.fx.Node) -> Use:
        return self.uses.get((consumer, operand), PLAIN)

    def varies(self, node: torch.fx.Node) -> frozenset[Factor]:
        """Mesh factors over whose ranks the value differs."""
        return factors_in(self.held[node], self.cuts) | self.partial[node] | self.routed_over(self.routed.get(node))

    def routed_over(self, routed: Routed | None) -> frozenset[Factor]:
        """Mesh factors over whose ranks other rows are right."""
        return frozenset() if routed is None else frozenset(self.cuts[routed.routing.choice].over)

    def summands(self, consumer: torch.fx.Node, operand: torch.fx.Node) -> frozenset[Factor]:
        """Mesh factors over which an operand arrives as a partial sum, before it is reduced."""
        return self.partial[operand] | self.routed_over(self.use(consumer, operand).routed)

    def reduces(self) -> Mapping[torch.fx.Node, frozenset[Factor]]:
        """Every value that is reduced, and over what."""
        found: dict[torch.fx.Node, frozenset[Factor]] = {}
        for (_, operand), use in self.uses.items():
            if use.reduce:
                found[operand] = found.get(operand, frozenset()) | use.reduce
        return found
