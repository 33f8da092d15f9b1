"""Pass, part of inserting collectives: values that are cut over their positions, and values read on positions.

Legal because what computes on positions treats them alike (see `placement.sequence`), and every other operator reads the
whole: gathered before it, with this rank's positions of its gradient, or of the sum of the ranks' gradients, backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..axes.layout import Factors, ordered
from ..placement.backward import Enter, Version
from ..placement.place import Placement
from ..placement.sequence import SequenceCut
from ..placement.state import Use
from ..runtime import collectives, sequence

# Makes a node: its key, the value it is made from, the function, kind and phase, over which ranks, further arguments.
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
        dim = self.cut.dim(self.facts[operand].dims)
        if dim is None:
            return value

        def take_positions(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return sequence.take_positions(value, ranks, dim)

        return self.make((value, "take_positions"), value, take_positions, "take_positions", "forward", self.cut.over)

    def shut(self, value: torch.fx.Node) -> torch.fx.Node:
        """What the unit hands on."""

        def shut(value: torch.Tensor, ranks: Any, source: torch.Tensor) -> torch.Tensor:
            return sequence.shut(value, ranks, source.shape[sequence.DIM])

        return self.make((value, "shut"), value, shut, "shut", "forward", self.cut.over, self.cut.source)

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
            return self._scattered(operand)
        if operand is not self.cut.source:
            return operand

        def opened(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return sequence.opened(value)

        return self.make((operand, "opened"), operand, opened, "opened", "forward", self.cut.over)

    def _scattered(self, operand: torch.fx.Node) -> torch.fx.Node:
        dim = self.cut.dim(self.facts[operand].dims)
        assert dim is not None

        def scatter_sum(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return sequence.scatter_sum(value, ranks, dim)

        return self.make((operand, "scatter_sum"), operand, scatter_sum, "reduce_scatter", "forward", self.cut.over)

    def _gathered(self, version: Version, value: torch.fx.Node) -> torch.fx.Node:
        dim, summed = self.cut.dim(self.facts[version[0]].dims), ordered(self.cut.gathers[version])
        again = version in self.cut.again
        assert dim is not None

        def gather_positions(value: torch.Tensor, ranks: Any, source: torch.Tensor) -> torch.Tensor:
            return sequence.gather_positions(value, ranks, dim, source.shape[sequence.DIM], summed, again=again)

        key = (value, "gather_positions")
        return self.make(key, value, gather_positions, "gather_positions", "forward", self.cut.over, self.cut.source)

    def _counted_once(self, value: torch.fx.Node, over: Factors) -> torch.fx.Node:
        def leave(value: torch.Tensor, ranks: Any) -> torch.Tensor:
            return collectives.leave(value, ranks, over)

        return self.make((value, over, "leave"), value, leave, "leave", "backward", over)
