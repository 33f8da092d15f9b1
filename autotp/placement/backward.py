"""What is placed for the backward of a unit, and what prices it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ..axes.layout import Factor

# What one call sends: the values of some nodes, of each of which a rank holds a share.
Values: TypeAlias = tuple[tuple[torch.fx.Node, float], ...]
# Cost of one collective of a kind on such values, over so many ranks.
Price: TypeAlias = Callable[[str, Values, int], float]
# A value as some consumer reads it: the node, and whether reduced.
Version: TypeAlias = tuple[torch.fx.Node, bool]


@dataclass(frozen=True)
class Enter:
    """Identity forward, all-reduce of the gradient over `over` backward, for these consumers of one value."""

    node: torch.fx.Node
    reduced: bool
    over: frozenset[Factor]
    consumers: tuple[torch.fx.Node, ...]


@dataclass(frozen=True)
class Leave:
    """Identity forward; backward, the gradient on the first rank along `over` and zero on the others."""

    node: torch.fx.Node
    over: frozenset[Factor]


@dataclass(frozen=True)
class Scatter:
    """A collection whose backward sums the gradient over `over` before each rank takes its slice of it."""

    node: torch.fx.Node
    over: frozenset[Factor]


@dataclass(frozen=True)
class PartSum:
    """A parameter of which some positions along a dim are the same on the ranks along `over`: their gradient is summed."""

    node: torch.fx.Node
    over: frozenset[Factor]
    dim: int
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Backward:
    """All that is placed for the backward of a unit."""

    enters: tuple[Enter, ...] = ()
    leaves: tuple[Leave, ...] = ()
    scatters: tuple[Scatter, ...] = ()
    part_sums: tuple[PartSum, ...] = ()
