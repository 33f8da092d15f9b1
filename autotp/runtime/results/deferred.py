"""Results that leave a unit as slices because nobody is known to read them: gathered if somebody does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ...axes.layout import Factors, Layout, ordered
from ..collectives.single import enter, gather, slice_to_rank
from ..collectives.slices import whole_size
from ..groups.ranks import Ranks
from .tensor import Policy, stand_for

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
        layouts = {dim: layout for dim, layout, _ in self.cuts}
        over = ordered(frozenset().union(*[over for _, _, over in self.cuts]))
        return slice_to_rank(
            enter(gradient, self.ranks, over), self.ranks, [layouts.get(i) for i in range(gradient.dim())]
        )


def deferred(local: torch.Tensor, ranks: Ranks, cuts: Cuts) -> torch.Tensor:
    """The value that a slice is of."""
    shape = list(local.shape)
    for dim, layout, _ in cuts:
        shape[dim] = whole_size(shape[dim], layout)
    return stand_for(local, shape, Deferred(ranks, cuts))
