"""Fused norms over a cut dim: written out where they are cut, as they are where they are not, and in no type less exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from autotp.axes.layout import Cut, Factor
from autotp.axes.term import Axis
from autotp.placement.place import Placement, place
from autotp.rewrite.build import build
from autotp.runtime.collectives.slices import take
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from tests.axes.prover import Captured, capture, on_rank
from tests.placement.test_flow import reduced

WIDTH = 10


def by_size(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight)


def by_both(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, weight)


def by_group(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.group_norm(x, 1, weight, weight)


def by_length(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) * weight


def cut_in(captured: Captured, dim: int, ranks: int) -> Placement:
    (axis,) = captured.terms(0)[dim]
    cuts: dict[Axis, Cut] = {axis: Cut((Factor(ranks, 1),), -(-axis.size // ranks) * ranks)}
    return place(captured.traced.graph, captured.typing, cuts, lambda *_: 1.0)


def rows(values: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    return [values.to(dtype), torch.linspace(0.5, 2, WIDTH).to(dtype)]


def on_ranks(norm: Callable[..., torch.Tensor], operands: list[torch.Tensor], ranks: int) -> torch.Tensor:
    """What a norm over a cut dim gives, whole again."""
    captured = capture(norm, operands)
    program = build(cut_in(captured, 1, ranks), captured.traced.constants, "operator")

    def run(own: Ranks) -> torch.Tensor:
        local = [take(o, program.layouts[f"operand_{i}"], own.rank) for i, o in enumerate(operands)]
        return on_rank(program, own, captured)(*local)[0].detach()

    first, *others = simulate(ranks, run)
    assert all(torch.equal(first, other) for other in others)
    return first


@pytest.mark.parametrize(("norm", "sums"), [(by_size, 1), (by_both, 2), (by_group, 2), (by_length, 1)])
def test_only_what_is_cut_is_written_out(norm: Callable[..., torch.Tensor], sums: int) -> None:
    captured = capture(norm, rows(torch.randn(4, WIDTH), torch.float64))
    names = [str(node.target) for node in captured.traced.graph.nodes]
    across, along = cut_in(captured, 1, 2), cut_in(captured, 0, 2)
    assert any("norm" in name for name in names)
    assert not any("norm" in str(node.target) for node in across.typed.graph.nodes)
    assert len(reduced(across)) == sums
    assert [str(node.target) for node in along.typed.graph.nodes] == names
    assert not reduced(along)
    assert [str(node.target) for node in captured.traced.graph.nodes] == names


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("norm", [by_size, by_both, by_group, by_length])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_type_keeps_its_precision(dtype: torch.dtype, norm: Callable[..., torch.Tensor], ranks: int) -> None:
    """Small numbers too, for which the default of eps counts."""
    operands = rows(torch.randn(6, WIDTH) * torch.tensor([1e-4, 1e-3, 0.1, 1, 10, 100]).unsqueeze(1), dtype)
    found, true = on_ranks(norm, operands, ranks), norm(*operands)
    assert found.dtype == true.dtype
    torch.testing.assert_close(found, true, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_equal_numbers_have_no_negative_variance(ranks: int) -> None:
    """Rounding must not be what is left of the variance: its root would be no number."""
    operands = rows(torch.tensor([[3.3e4], [1e3 / 3], [-7e2], [0.0]]).expand(4, WIDTH), torch.float32)
    found, true = on_ranks(by_both, operands, ranks), by_both(*operands)
    assert found.isfinite().all()
    torch.testing.assert_close(found[-1], true[-1])


@pytest.mark.parametrize("ranks", [2, 3])
def test_nothing_but_zeros_has_the_length_zero_and_no_gradient(ranks: int) -> None:
    operand = torch.randn(3, WIDTH, dtype=torch.float64).index_fill_(0, torch.tensor([1]), 0).requires_grad_()
    captured = capture(lambda x: torch.linalg.vector_norm(x, dim=-1), [operand])
    program = build(cut_in(captured, 1, ranks), captured.traced.constants, "operator")
    layout = program.layouts["operand_0"]
    true = torch.linalg.vector_norm(operand, dim=-1)
    (gradient,) = torch.autograd.grad(true.sum(), operand)

    def run(own: Ranks) -> None:
        local = take(operand.detach(), layout, own.rank).requires_grad_()
        found = on_rank(program, own, captured)(local)[0]
        torch.testing.assert_close(found, true)
        torch.testing.assert_close(*torch.autograd.grad(found.sum(), local), take(gradient, layout, own.rank))

    simulate(ranks, run)
