"""Products of groups of rows: the operator that is traced is torch's, for every type and size."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import grouped_mm

from autotp.capture.grouped import GroupedProducts

ENDS = torch.tensor([2, 2, 7], dtype=torch.int32)


def values(k: int, m: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, matrices kept transposed, and weights of the result."""
    generator = torch.Generator().manual_seed(0)
    rows, matrices, weights = (torch.randn(shape, generator=generator) for shape in ((7, k), (3, m, k), (7, m)))
    return rows.to(dtype).requires_grad_(), matrices.to(dtype).requires_grad_(), weights.to(dtype)


def one_by_one(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows[:2] @ matrices[0].t(), rows[2:] @ matrices[2].t()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("k", "m"), [(8, 16), (7, 16), (8, 5), (7, 5)])
def test_it_is_a_product_for_every_group(dtype: torch.dtype, k: int, m: int) -> None:
    rows, matrices, weights = values(k, m, dtype)
    with GroupedProducts():
        found = grouped_mm(rows, matrices.transpose(1, 2), offs=ENDS)
    assert "autotp" in type(found.grad_fn).__name__
    expected = one_by_one(rows, matrices)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad((result * weights).sum(), [rows, matrices]) for result in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_it_is_what_torch_computes_where_torch_has_a_kernel() -> None:
    rows, matrices, weights = values(8, 16, torch.float32)
    found = torch.ops.autotp.grouped_mm(rows, matrices.transpose(1, 2), ENDS)
    expected = grouped_mm(rows, matrices.transpose(1, 2), offs=ENDS)
    assert torch.equal(found, expected)
    gradients = [torch.autograd.grad((result * weights).sum(), [rows, matrices]) for result in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_no_rows_make_no_result_and_no_gradient() -> None:
    rows, matrices = torch.zeros(0, 8, requires_grad=True), torch.randn(3, 8, 16, requires_grad=True)
    result = torch.ops.autotp.grouped_mm(rows, matrices, torch.zeros(3, dtype=torch.int32))
    result.sum().backward()
    assert result.shape == (0, 16)
    assert matrices.grad is not None
    assert not matrices.grad.any()


def test_other_products_of_the_same_operator_are_left_alone() -> None:
    one, other = torch.randn(3, 4, 8), torch.randn(3, 8, 16)
    with GroupedProducts():
        torch.testing.assert_close(grouped_mm(one, other), one @ other)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # what 2.15 has in opcheck
def test_both_operators_say_the_shapes_of_their_results() -> None:
    rows, matrices, weights = values(8, 16, torch.float64)
    columns = matrices.detach().transpose(1, 2).contiguous().requires_grad_()
    torch.library.opcheck(torch.ops.autotp.grouped_mm.default, (rows, columns, ENDS))
    torch.library.opcheck(torch.ops.autotp.grouped_outer.default, (rows.detach(), weights, ENDS))
