"""What stands for a whole in an object is no slice, whatever its size is like."""

from __future__ import annotations

import torch

from autotp.axes.layout import Cut, Factor, Leaf
from autotp.dispatch.compiler import Compiler
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.deferred import deferred

OVER = (Factor(2, 1),)


def test_it_is_no_slice_although_slices_are_like_it() -> None:
    compiler = Compiler({}, lambda kind, values, ranks: 0.0)
    compiler.widths.note((2, 4, 12), (2, 4, 24))

    def on_rank(ranks: Ranks) -> None:
        stands = deferred(torch.zeros(2, 4, 6), ranks, ((2, Leaf(12, Cut(OVER, 12)), OVER),))
        assert stands.shape == (2, 4, 12)
        assert compiler.is_slice(torch.zeros(2, 4, 12))
        assert not compiler.is_slice(stands)

    simulate(2, on_rank)
