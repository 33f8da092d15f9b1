"""A value cut over the positions of a sequence, as blocks hand it on to each other.

Blocks compute on a rank's positions. To everybody else that is the whole value, put together at the first use, so the Python
between blocks computes what it always did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..collectives.positions import gathered_positions, own_positions, take_positions
from ..collectives.single import refuse_again
from ..groups.ranks import Ranks
from .tensor import CutResult, Policy, closed, part_of, stand_for

aten = torch.ops.aten
# Counted from the end, the dim that is cut: positions, each a vector.
DIM = -2


@dataclass(eq=False)
class Positions(Policy):
    """Some positions, in dim `DIM`, of `length` in all. Gradients are cut too."""

    ranks: Ranks
    length: int
    phase: str = "forward"
    taken_cut = True

    def of(self, local: torch.Tensor) -> CutResult:
        """The value without history of which a tensor holds this rank's positions."""
        return CutResult.of(local.detach(), _shape(local, self.length), self)

    def gathered(self, local: torch.Tensor) -> torch.Tensor:
        return gathered_positions(local, self.ranks, local.dim() + DIM, self.length, self.phase)

    def own_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        refuse_again(gradient, "a sequence that is cut over ranks")
        return gradient.local if _is_cut(gradient) else self._own(closed(gradient))  # type: ignore[attr-defined]

    def of_part(self, gradient: torch.Tensor) -> torch.Tensor:
        refuse_again(gradient, "a sequence that is cut over ranks")
        return Positions(self.ranks, self.length, "backward").of(gradient)

    def on_part(self, func: Any, args: Any) -> Any:
        """What autograd itself does with values and gradients."""
        first = args[0]
        if not _is_cut(first):
            return NotImplemented
        if func is aten.clone.default:
            return self.of(first.local.clone())
        if func is aten.view.default and list(args[1]) == list(first.shape):
            return first.view_of(first.local, first)
        if func is aten.add.Tensor and len(args) == 2 and _is_cut(args[1]) and args[1].shape == first.shape:
            return self.of(first.local + args[1].local)
        return NotImplemented

    def _own(self, whole: torch.Tensor) -> torch.Tensor:
        return own_positions(whole, self.ranks, whole.dim() + DIM)


def _shape(local: torch.Tensor, length: int) -> list[int]:
    return [*local.shape[:DIM], length, *local.shape[DIM + 1 :]]


def _is_cut(value: Any) -> bool:
    return isinstance(value, CutResult) and isinstance(value.policy, Positions) and not value.is_settled


def shut(local: torch.Tensor, ranks: Ranks, length: int) -> torch.Tensor:
    """What a block gives: a rank's positions as the value they are of."""
    return stand_for(local, _shape(local, length), Positions(ranks, length))


def opened(cut: Any) -> torch.Tensor:
    """What a block computes on: a rank's positions of a cut value."""
    return part_of(cut) if _is_cut(cut) else _sliced(closed(cut), cut.policy.ranks)


def _sliced(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    return take_positions(value, ranks, value.dim() + DIM)


def cut_over_positions(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """A value as a cut one; a whole value is sliced, and backward its gradient is gathered."""
    if _is_cut(value):
        return value
    return shut(_sliced(closed(value), ranks), ranks, value.shape[DIM])


def as_taken(tensors: Sequence[torch.Tensor], cut: int | None, ranks: Ranks) -> Sequence[torch.Tensor]:
    """The tensors of a call as a program takes them: the one numbered `cut` over positions, all others whole."""
    if cut is None and not any(type(tensor) is CutResult for tensor in tensors):
        return tensors
    return [cut_over_positions(t, ranks) if i == cut else closed(t) for i, t in enumerate(tensors)]
