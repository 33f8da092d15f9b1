"""Pass, part of inserting collectives: values that are cut over their positions, and values read on positions.

Legal because what computes on positions treats them alike (see `placement.sequence`), and every other operator reads the
whole: gathered before it, with this rank's positions of its gradient, or of the sum of the ranks' gradients, backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from ..axes.layout import Factors, Leaf, ordered
from ..placement.backward import Enter, Version
from ..placement.place import Placement
from ..placement.sequence import SequenceCut
from ..placement.state import Use
from ..placement.transition import Transition
from ..runtime.results import sequence

# Makes a node: its key, the value it is made from, what it does, what else it reads.
Make = Callable[..., torch.fx.Node]


class Positions:
    """The nodes around values that are cut over positions."""

    def __init__(
        self,
        placement: Placement,
        cut: SequenceCut,
        make: Make,
        entered: Mapping[tuple[torch.fx.Node, torch.fx.Node], Enter],
    ) -> None:
        self.facts, self.cut, self.make, self.entered = placement.typed.facts, cut, make, entered

    def is_cut(self, operand: torch.fx.Node, use: Use) -> bool:
        """Returns if what is read is cut over positions."""
        return self.cut.is_cut((operand, bool(use.reduce)))

    def read(self, consumer: torch.fx.Node, operand: torch.fx.Node, use: Use) -> torch.fx.Node:
        """A cut value as a consumer reads it: so, or whole."""
        version = operand, bool(use.reduce)
        value = self._local(version)
        if self.cut.wants_cut(consumer, operand):
            return value
        value = self._gathered(version, value)
        enter = self.entered.get((consumer, operand))
        alike = self.cut.gathers[version] - (enter.over if enter else frozenset())
        return self._counted_once(value, ordered(alike)) if alike else value

    def sliced(self, operand: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
        """A whole value as a consumer that computes on positions reads it."""
        if self.cut.dim(self.facts[operand].dims) is None:
            return value
        return self.make((value, "take_positions"), value, self._along(operand, "take_positions"))

    def shut(self, value: torch.fx.Node) -> torch.fx.Node:
        """What the unit hands on."""
        return self.make((value, "shut"), value, Transition("shut", self.cut.over), others=(self.cut.source,))

    def reads_length(self, size: torch.fx.Node, operand: torch.fx.Node) -> bool:
        """Returns if a node reads a size off a cut value. The number of positions is that of the whole, which the value that the
        unit was given has."""
        if size.target is not torch.ops.aten.sym_size.int or operand not in self.cut.held:
            return False
        dim, dims = size.args[1], self.facts[operand].dims
        assert isinstance(dim, int)
        if operand is not self.cut.source and self.cut.dim(dims) == dim % len(dims):
            size.args = (self.cut.source, len(self.facts[self.cut.source].dims) + sequence.DIM)
        return True

    def _local(self, version: Version) -> torch.fx.Node:
        operand, reduced = version
        if reduced:
            return self.make((operand, "scatter_sum"), operand, self._along(operand, "scatter_sum"))
        if operand is not self.cut.source:
            return operand
        return self.make((operand, "opened"), operand, Transition("opened", self.cut.over))

    def _gathered(self, version: Version, value: torch.fx.Node) -> torch.fx.Node:
        summed, again = ordered(self.cut.gathers[version]), version in self.cut.again
        record = replace(self._along(version[0], "gather_positions"), summed=summed, again=again)
        return self.make((value, "gather_positions"), value, record, others=(self.cut.source,))

    def _along(self, operand: torch.fx.Node, does: str) -> Transition:
        """What is done along the positions of a value."""
        dim, over = self.cut.dim(self.facts[operand].dims), self.cut.over
        assert dim is not None
        return Transition(does, over, dims=((dim, Leaf(self.cut.axis.size), over),))

    def _counted_once(self, value: torch.fx.Node, over: Factors) -> torch.fx.Node:
        return self.make((value, over, "leave"), value, Transition("leave", over))
