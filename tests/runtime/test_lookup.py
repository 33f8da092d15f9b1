"""Rows of a table of which each rank holds some."""

from __future__ import annotations

import torch

from autotp.axes.layout import Cut, Factor, Leaf
from autotp.runtime.collectives.single import lookup, reduce
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate

OVER = (Factor(3, 1),)
LAYOUT = Leaf(8, Cut(OVER, 9))  # the last rank holds two rows and one of padding


def test_ranks_find_the_rows_of_the_whole_table_and_read_no_others() -> None:
    table = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table[[0, 3, 6]] = torch.inf  # the first of each rank, which is what it looks up for rows that it does not hold
    padded = torch.cat([table, torch.zeros(1, 4, dtype=torch.float64)])
    asked = torch.tensor([[1, 2, 4], [5, 7, 1]])

    def on_rank(ranks: Ranks) -> torch.Tensor:
        own = padded[3 * ranks.rank : 3 * ranks.rank + 3]
        return reduce(lookup(own, asked, ranks, LAYOUT), ranks, OVER)

    for found in simulate(3, on_rank):
        assert torch.equal(found, table[asked])
