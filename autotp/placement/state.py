"""What forward placement finds: where values are slices and partial sums, and how every operator reads its operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ..axes.layout import Cuts, Factor
from ..axes.term import Axis
from .routed import Routed
from .typed import factors_in

# A consumer, and one of its operands.
Edge: TypeAlias = tuple[torch.fx.Node, torch.fx.Node]


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


@dataclass(frozen=True)
class Flow:
    """The forward state of every value, and how every edge reads it.

    Attributes:
        cuts: the cut axes.
        held: of every value, along which axes a rank has its slice only.
        partial: over which mesh factors a value is a partial sum.
        routed: the values of which some rows are right.
        uses: how a node reads an operand, where it reads it otherwise than as it is.
        gathers, deferred, kept: results along which axes they are gathered, gathered once they are read, or handed on cut.
        gradient: values that may receive a gradient. written: values in memory that some node writes into.
        products: names of nodes that may have a partial sum for a result, or may not: their sum costs less before or behind.
    """

    cuts: Cuts
    held: Mapping[torch.fx.Node, frozenset[Axis]]
    partial: Mapping[torch.fx.Node, frozenset[Factor]]
    routed: Mapping[torch.fx.Node, Routed]
    uses: Mapping[Edge, Use]
    gathers: Mapping[torch.fx.Node, frozenset[Axis]]
    deferred: Mapping[torch.fx.Node, frozenset[Axis]]
    kept: Mapping[torch.fx.Node, frozenset[Axis]]
    gradient: frozenset[torch.fx.Node]
    written: frozenset[torch.fx.Node]
    products: frozenset[str] = frozenset()

    def use(self, consumer: torch.fx.Node, operand: torch.fx.Node) -> Use:
        return self.uses.get((consumer, operand), PLAIN)

    def varies(self, node: torch.fx.Node) -> frozenset[Factor]:
        """Mesh factors over whose ranks the value differs."""
        return factors_in(self.held[node], self.cuts) | self.partial[node] | self.routed_over(self.routed.get(node))

    def collected(self, marker: torch.fx.Node, operand: torch.fx.Node) -> frozenset[Axis]:
        """The axes along which a marker's value is gathered; along others a rank has its slice behind it too."""
        return self.held[operand] - self.held[marker]

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
