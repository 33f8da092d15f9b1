"""The part that a rank takes of a value that lies in an object, however it lies there."""

from __future__ import annotations

import pytest
import torch

from autotp.axes.layout import Cut, Factor, Layout, Leaf, ProductLayout
from autotp.errors import TraceError
from autotp.rewrite.put import _part
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.deferred import Deferred, deferred

OVER = (Factor(2, 1),)
WHOLE = torch.arange(16.0, dtype=torch.float64).view(2, 8)
FLAT = Leaf(8, Cut(OVER, 8))
HEADS = ProductLayout((Leaf(4, Cut(OVER, 4)), Leaf(2)))  # the same elements as FLAT
INSIDE = ProductLayout((Leaf(4), Leaf(2, Cut(OVER, 2))))


def policy(ranks: Ranks, layout: Layout) -> Deferred:
    return Deferred(ranks, ((1, layout, OVER),))


def of(layout: Layout, rank: int) -> torch.Tensor:
    return WHOLE.view(2, 4, 2)[:, :, rank] if layout is INSIDE else WHOLE[:, 4 * rank : 4 * rank + 4]


@pytest.mark.parametrize("wanted", [FLAT, HEADS, INSIDE])
@pytest.mark.parametrize("kept", [FLAT, HEADS, INSIDE])
def test_the_part_of_what_stands_for_a_whole(kept: Layout, wanted: Layout) -> None:
    is_alike = (kept is INSIDE) == (wanted is INSIDE)

    def on_rank(ranks: Ranks) -> None:
        value = deferred(of(kept, ranks.rank), ranks, policy(ranks, kept).cuts)
        with ranks.logging() as log:
            torch.testing.assert_close(_part(value, policy(ranks, wanted), "State"), of(wanted, ranks.rank))
        assert len(log.calls) == (0 if is_alike else 1)
        torch.testing.assert_close(_part(WHOLE, policy(ranks, wanted), "State"), of(wanted, ranks.rank))
        torch.testing.assert_close(
            _part(of(wanted, ranks.rank), policy(ranks, wanted), "State"), of(wanted, ranks.rank)
        )

    simulate(2, on_rank)


@pytest.mark.parametrize("is_settled", [False, True])
@pytest.mark.parametrize("wanted", [FLAT, HEADS, INSIDE])
def test_its_gradient_is_a_part_or_there_is_none(wanted: Layout, is_settled: bool) -> None:
    def on_rank(ranks: Ranks) -> None:
        own = of(FLAT, ranks.rank).clone().requires_grad_()
        value = deferred(own, ranks, policy(ranks, FLAT).cuts)
        if is_settled:
            value.select(1, 0)  # into which somebody may write
        if wanted is INSIDE:
            with pytest.raises(TraceError, match="cut otherwise"):
                _part(value, policy(ranks, wanted), "State")
            return
        (gradient,) = torch.autograd.grad((_part(value, policy(ranks, wanted), "State") * 3).sum(), own)
        torch.testing.assert_close(gradient, torch.full_like(own, 3))

    simulate(2, on_rank)


@pytest.mark.parametrize("kept", ["a whole", "what is settled", "another part"])
def test_what_is_written_into_is_the_value_itself_or_there_is_none(kept: str) -> None:
    def on_rank(ranks: Ranks) -> None:
        wanted = policy(ranks, FLAT)
        own = of(FLAT, ranks.rank).clone()
        assert _part(own, wanted, "State", written=True) is own
        value = deferred(own, ranks, wanted.cuts)
        assert _part(value, wanted, "State", written=True).data_ptr() == own.data_ptr()
        others = {"a whole": WHOLE.clone(), "what is settled": value, "another part": value}
        if kept == "what is settled":
            value.select(1, 0)
        with pytest.raises(TraceError, match="writes into a value in a State"):
            _part(others[kept], policy(ranks, INSIDE) if kept == "another part" else wanted, "State", written=True)

    simulate(2, on_rank)
