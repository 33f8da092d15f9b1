"""Which values of a unit are computed on a rank's positions: by operator, on small modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autotp.axes.layout import Cut
from autotp.axes.term import axes_of
from autotp.placement.place import Placement, place
from tests.placement.test_flow import HIDDEN, OVER, UP, Mlp, per_call, problem_of


class Around(Mlp):
    """A residual chain, with something before it and something behind."""

    def __init__(self, before: Callable[[torch.Tensor], torch.Tensor], after: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(HIDDEN), nn.Parameter(torch.ones(HIDDEN))
        self.square = nn.Parameter(torch.eye(HIDDEN))
        self.before, self.last = before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self, x, super().forward(self.before(self.norm(x))))


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def add(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def written(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return result


def placed(
    before: Callable[[torch.Tensor], torch.Tensor] = same, after: Callable[..., torch.Tensor] = add
) -> Placement:
    problem = problem_of(Around(before, after))
    name, dim, number = UP
    axis = list(axes_of(problem.parameters()[name][dim]))[number]
    return place(problem.graph, problem.typing, {axis: Cut((OVER,), axis.size)}, per_call, sequence=2)


def held(placement: Placement) -> set[str]:
    assert placement.sequence is not None, placement.left_whole
    return {str(node.target).split(".")[1] for node in placement.sequence.held if node.op == "call_function"}


def test_norm_and_residual_are_computed_on_positions_and_the_chain_is_not() -> None:
    placement = placed()
    cut = placement.sequence
    assert cut is not None
    assert held(placement) == {"layer_norm", "add"}
    assert [node.name for node in cut.scattered] == ["linear_1"]
    ((gathered, reduced),) = cut.gathers
    assert (gathered.name, reduced) == ("layer_norm", False)
    assert cut.again == frozenset(cut.gathers)
    assert {str(node.target): of for node, of in cut.sums.items()} == {
        "norm.weight": "parameter",
        "norm.bias": "parameter",
    }
    assert not cut.slices


@pytest.mark.parametrize(
    ("mixes", "operator"),
    [
        (lambda x: x.cumsum(1), "cumsum"),
        (lambda x: x - x.mean(1, keepdim=True), "mean"),
        (lambda x: x.softmax(1), "softmax"),
        (lambda x: x.flip(1), "flip"),
        (lambda x: x.reshape(x.shape), "reshape"),
    ],
)
def test_what_mixes_or_counts_positions_reads_them_all(
    mixes: Callable[[torch.Tensor], torch.Tensor], operator: str
) -> None:
    placement = placed(before=mixes)
    assert operator not in held(placement)
    assert "layer_norm" in held(placement)
    assert placement.sequence is not None
    assert placement.sequence.gathers


def test_what_is_made_of_whole_values_is_sliced_for_the_residual() -> None:
    placement = placed(after=lambda module, x, y: x + y.cumprod(1))
    assert placement.sequence is not None
    assert [node.name for node, _ in placement.sequence.slices] == ["cumprod"]
    assert not placement.sequence.scattered


def test_a_product_with_a_matrix_that_is_whole_reads_and_gives_whole_values() -> None:
    placement = placed(after=lambda module, x, y: x + torch.nn.functional.linear(x, module.square) * module.scale + y)
    cut = placement.sequence
    assert cut is not None
    assert "linear" not in held(placement)
    assert any(node.op == "placeholder" for node, _ in cut.gathers)  # the product reads the unit's input
    assert {str(node.target) for node in cut.sums} >= {"norm.weight"}


def test_a_value_without_positions_has_a_partial_gradient() -> None:
    placement = placed(after=lambda module, x, y: (x + y) * (1 + module.scale))
    assert placement.sequence is not None
    assert "parameter" in {of for node, of in placement.sequence.sums.items() if node.op == "call_function"}


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (lambda module, x, y: (x + y).sum(1), "no result has the positions of an input"),
        (lambda module, x, y: written(x, x + y), "it writes into its input"),
        (lambda module, x, y: x + torch.cat([y[:, 1:], y[:, :1]], 1), "its positions are taken apart"),
        (lambda module, x, y: (x + y)[:, 1:], "no result has the positions of an input"),
    ],
)
def test_what_cannot_be_cut_says_why(after: Callable[..., torch.Tensor], why: str) -> None:
    placement = placed(after=after)
    assert placement.sequence is None
    assert placement.left_whole == why
