"""Steps around values that are cut over their positions, and around values read on positions.

Legal because what computes on positions treats them alike (see `sequence`), and every other operator reads the whole: gathered
before it, with this rank's positions of its gradient, or of the sum of the ranks' gradients, backward.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..axes.facts import Fact
from ..axes.layout import Factors, Leaf, ordered
from .backward import Enter, Version
from .sequence import SequenceCut
from .state import Edge, Use
from .steps import Step, Value
from .transition import Transition


class Positions:
    """The steps around values that are cut over positions. `entered` are the enters that placement found without the cut."""

    def __init__(self, facts: Mapping[torch.fx.Node, Fact], cut: SequenceCut, entered: Mapping[Edge, Enter]) -> None:
        self.facts, self.cut, self.entered = facts, cut, entered

    def is_cut(self, operand: torch.fx.Node, use: Use) -> bool:
        """Returns if what is read is cut over positions."""
        return self.cut.is_cut((operand, bool(use.reduce)))

    def read(self, consumer: torch.fx.Node, operand: torch.fx.Node, use: Use) -> Value:
        """A cut value as a consumer reads it: so, or whole."""
        version = operand, bool(use.reduce)
        value = self._local(version)
        if self.cut.wants_cut(consumer, operand):
            return value
        whole = self._gathered(version, value)
        enter = self.entered.get((consumer, operand))
        alike = self.cut.gathers[version] - (enter.over if enter else frozenset())
        return Step(Transition("leave", ordered(alike)), whole, about=operand) if alike else whole

    def sliced(self, operand: torch.fx.Node, value: Value) -> Value:
        """A whole value as a consumer that computes on positions reads it."""
        if self.cut.dim(self.facts[operand].dims) is None:
            return value
        return Step(self._along(operand, "take_positions"), value, about=operand)

    def shut(self, operand: torch.fx.Node, value: Value) -> Step:
        """What the unit hands on."""
        return Step(Transition("shut", self.cut.over), value, (self.cut.source,), about=operand)

    def reads_length(self, size: torch.fx.Node, operand: torch.fx.Node) -> bool:
        """Returns if a node reads a size off a cut value."""
        return size.target is torch.ops.aten.sym_size.int and operand in self.cut.held

    def length(self, size: torch.fx.Node, operand: torch.fx.Node) -> dict[torch.fx.Node, tuple[torch.fx.Node, int]]:
        """Where such a node reads the number of positions: that of the whole, which the value that the unit was given has."""
        dim, dims = size.args[1], self.facts[operand].dims
        assert isinstance(dim, int)
        of_source = self.cut.dim(self.facts[self.cut.source].dims)
        if operand is self.cut.source or of_source is None or self.cut.dim(dims) != dim % len(dims):
            return {}
        return {size: (self.cut.source, of_source)}

    def _local(self, version: Version) -> Value:
        operand, reduced = version
        if reduced:
            return Step(self._along(operand, "scatter_sum"), operand, about=operand)
        if operand is not self.cut.source:
            return operand
        return Step(Transition("opened", self.cut.over), operand, about=operand)

    def _gathered(self, version: Version, value: Value) -> Step:
        summed, again = ordered(self.cut.gathers[version]), version in self.cut.again
        record = self._along(version[0], "gather_positions", summed=summed, again=again)
        return Step(record, value, (self.cut.source,), about=version[0])

    def _along(self, operand: torch.fx.Node, does: str, summed: Factors = (), again: bool = False) -> Transition:
        """What is done along the positions of a value."""
        dim, over = self.cut.dim(self.facts[operand].dims), self.cut.over
        assert dim is not None
        return Transition(does, over, dims=((dim, Leaf(self.cut.axis.size), over),), summed=summed, again=again)
