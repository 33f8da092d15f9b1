"""What stands between values: every transition of a placed unit, decided once.

What is joined, priced, judged, shown and run are these steps: the node of a program is made from a step, and has its record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from .state import Edge
from .transition import Transition


@dataclass(frozen=True)
class Step:
    """One transition of one value. Equal steps are one, whoever reads its result.

    Attributes:
        record: what it does.
        value: the node whose value it takes, or the step before it.
        others: what else it reads.
        before: the only consumer, where the step must stand right before it.
        about: the node whose value is sent; for what a marker gathers, the marker.
    """

    record: Transition
    value: torch.fx.Node | Step
    others: tuple[torch.fx.Node, ...] = ()
    before: torch.fx.Node | None = None
    about: torch.fx.Node = field(compare=False, kw_only=True)

    @property
    def root(self) -> torch.fx.Node:
        """The node whose value the first step of the path takes."""
        return self.value.root if isinstance(self.value, Step) else self.value

    @property
    def path(self) -> tuple[Step, ...]:
        """The steps that lead to it, itself the last."""
        before = self.value.path if isinstance(self.value, Step) else ()
        return (*before, self)

    @property
    def is_of_sum(self) -> bool:
        """Returns if it takes, or gives, the sum of what was a partial sum."""
        return any(step.record.does in ("reduce", "scatter_sum") for step in self.path)


# A value on its way to a consumer: as a node gives it, or behind some steps.
Value: TypeAlias = torch.fx.Node | Step


@dataclass(frozen=True)
class Steps:
    """All steps of a unit.

    Attributes:
        reads: what consumers read in place of an operand.
        collected: what stands in place of a marker.
        lengths: sizes that are read off another value, and of which of its dims.
    """

    reads: Mapping[Edge, Step]
    collected: Mapping[torch.fx.Node, Value]
    lengths: Mapping[torch.fx.Node, tuple[torch.fx.Node, int]]

    def __iter__(self) -> Iterator[Step]:
        """Every step once, behind those that lead to it."""
        ends = [*self.reads.values(), *(end for end in self.collected.values() if isinstance(end, Step))]
        return iter(dict.fromkeys(step for end in ends for step in end.path))
