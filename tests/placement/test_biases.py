"""A bias leaves only a product that is known to add it and to do nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autotp.axes.layout import Cut, Factor
from autotp.errors import UnsoundPlanError
from autotp.placement.place import place
from tests.axes.prover import capture


@torch.library.custom_op("autotp_tests::fused", mutates_args=())
def fused(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (input @ weight.T + bias).relu()


@fused.register_fake
def _(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return input.new_empty(*input.shape[:-1], weight.shape[0])


def test_a_kernel_with_an_activation_inside_keeps_its_bias(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "own.toml").write_text('[autotp_tests]\nfused = "... i, o i, o -> ... o"\n')
    operands = [torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)]
    captured = capture(fused, operands, rules=(tmp_path,))
    ((axis,),) = [captured.terms(1)[1]]
    with pytest.raises(UnsoundPlanError, match="adds something else in one step"):
        place(captured.traced.graph, captured.typing, {axis: Cut((Factor(2, 1),), 4)}, lambda *_: 1.0)
