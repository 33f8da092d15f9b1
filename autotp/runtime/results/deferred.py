"""Results that leave a unit as slices because nobody is known to read them: gathered if somebody does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import torch

from ...axes.layout import Factors, Layout, ordered
from ..collectives.single import enter, gather, slice_to_rank
from ..collectives.slices import whole_size
from ..groups.ranks import Ranks
from .tensor import CutResult, Policy, part_of, stand_for

aten = torch.ops.aten
# A dim, its layout, and the mesh factors that it is gathered over.
Cuts: TypeAlias = Sequence[tuple[int, Layout, Factors]]


@dataclass(eq=False)
class Deferred(Policy):
    """A slice that is gathered, dim after dim, at its first use."""

    ranks: Ranks
    cuts: Cuts

    def gathered(self, local: torch.Tensor) -> torch.Tensor:
        for dim, layout, over in self.cuts:
            local = gather(local, self.ranks, over, dim, layout)
        return local

    def own_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._is_cut(gradient):
            return part_of(gradient)
        over = ordered(frozenset().union(*[over for _, _, over in self.cuts]))
        return self.own(enter(gradient, self.ranks, over))

    def of_part(self, gradient: torch.Tensor) -> torch.Tensor:
        return deferred(gradient, self.ranks, self.cuts)

    def on_part(self, func: Any, args: Any) -> Any:
        """The sum of two; a whole one is sliced, so that the sum is cut."""
        if func is not aten.add.Tensor or len(args) != 2 or not isinstance(args[1], torch.Tensor):
            return NotImplemented
        if args[0].shape != args[1].shape or args[0].dtype != args[1].dtype or any(map(_is_whole, args)):
            return NotImplemented
        one, other = (each.local if self._is_cut(each) else self.own(each) for each in args)
        self.ranks.note_computed()
        return CutResult.of(one + other, args[0].shape, Deferred(self.ranks, self.cuts))

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's slice."""
        layouts = {dim: layout for dim, layout, _ in self.cuts}
        return slice_to_rank(whole, self.ranks, [layouts.get(i) for i in range(whole.dim())])

    def _is_cut(self, value: torch.Tensor) -> TypeGuard[CutResult]:
        """Returns if a value is cut as this one is."""
        if not isinstance(value, CutResult) or value.is_settled or not isinstance(value.policy, Deferred):
            return False
        return value.policy is self or value.policy.cuts == self.cuts


def _is_whole(value: torch.Tensor) -> bool:
    return isinstance(value, CutResult) and value.is_whole


def deferred(local: torch.Tensor, ranks: Ranks, cuts: Cuts) -> torch.Tensor:
    """The value that a slice is of."""
    shape = list(local.shape)
    for dim, layout, _ in cuts:
        shape[dim] = whole_size(shape[dim], layout)
    return stand_for(local, shape, Deferred(ranks, cuts))
