"""A rank's rows of a product of groups: the sum over ranks is the whole one, whatever the kernel leaves in other rows."""

from __future__ import annotations

import pytest
import torch

import autotp.capture.grouped
from autotp.axes.layout import Cut, Factor, Leaf
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.layers.routing import own_groups

ENDS = torch.tensor([0, 3, 3, 9, 11], dtype=torch.int32)
GROUPED = torch.ops.autotp.grouped_mm


def values(dtype: torch.dtype, rows: int = 11) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, matrices kept transposed as experts' often are, and a gradient of the result."""
    generator = torch.Generator().manual_seed(0)
    found = (torch.randn(shape, generator=generator) for shape in ((rows, 8), (5, 16, 8), (rows, 16)))
    given, matrices, gradient = (value.to(dtype) for value in found)
    return given.requires_grad_(), matrices.requires_grad_(), gradient


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_rows_of_all_ranks_are_the_whole_product(dtype: torch.dtype, size: int) -> None:
    """Of five groups over four ranks the last rank has none."""
    rows, matrices, gradient = values(dtype)
    whole = GROUPED(rows, matrices.transpose(1, 2), ENDS)
    expected = torch.autograd.grad(whole, [rows, matrices], gradient)
    local = -(-5 // size)
    parts = Leaf(5, Cut((Factor(size, 1),), local * size))

    def run(ranks: Ranks) -> list[torch.Tensor]:
        own = torch.zeros(local, 16, 8, dtype=dtype)
        here = matrices[ranks.rank * local : (ranks.rank + 1) * local].detach()
        own[: len(here)] = here
        given, own = rows.detach().clone().requires_grad_(), own.requires_grad_()
        result = own_groups(GROUPED, given, own.transpose(1, 2), ENDS, ranks, parts)
        return [result.detach(), *torch.autograd.grad(result, [given, own], gradient)]

    found = simulate(size, run)
    torch.testing.assert_close(sum(result for result, _, _ in found), whole.detach())
    torch.testing.assert_close(sum(of_rows for _, of_rows, _ in found), expected[0])
    torch.testing.assert_close(torch.cat([of_matrices for _, _, of_matrices in found])[:5], expected[1])
    assert all(int((result != 0).any(1).sum()) <= 9 for result, _, _ in found)


def test_no_rows_make_no_result() -> None:
    rows, matrices, _ = values(torch.float32, rows=0)
    parts, ends = Leaf(5, Cut((Factor(2, 1),), 6)), torch.zeros(5, dtype=torch.int32)

    def run(ranks: Ranks) -> torch.Tensor:
        return own_groups(GROUPED, rows, matrices[:3].transpose(1, 2), ends, ranks, parts)

    assert [result.shape for result in simulate(2, run)] == [(0, 16)] * 2


def test_torch_has_kernels_for_these_sizes() -> None:
    """Else the rows that a kernel leaves would not be among what is tested here."""
    rows, matrices, _ = values(torch.float32)
    assert autotp.capture.grouped._has_kernel(rows, matrices.transpose(1, 2))
