"""Training in float64 is the dense model's training: the first steps of `benchmarks/steps.py`, one size a family."""

from __future__ import annotations

import pytest
import torch

from benchmarks.rounding import Rounding
from benchmarks.steps import FAMILIES, Steps

SIZES = {"llama": 4, "gpt2": 3, "phi3": 4, "gptj": 2, "bert": 3, "t5": 2}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_step_is_that_of_the_dense_model(name: str) -> None:
    found = Steps(name, 10).compare(SIZES[name])
    assert found.loss < 1e-12
    assert found.parameter < 1e-11
    assert found.padding == 0.0


def test_a_dense_run_that_sums_in_another_order_differs_by_rounding_alone() -> None:
    assert 0 < max(Steps("gpt2", 8).orders(2)) < 1e-12


def test_losses_in_bfloat16_are_those_of_a_dense_run() -> None:
    """Few steps, which chance has not taken far apart: as far off as dense runs that sum in another order."""
    steps = Steps("llama", 4, torch.bfloat16)
    assert (
        0 < steps.compare(4).loss < 2 * max(steps.orders(8))
    )  # which is furthest off depends on the machine's kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_round_no_more_than_the_dense_model_does(dtype: torch.dtype) -> None:
    found = Rounding("phi3", dtype, steps=5, batches=3)
    orders = max(found.dense(), *(found.regrouped(seed, 2 + seed % 3) for seed in range(4)))
    assert 0 < found.parallel(4) < 1.2 * orders
