"""Training in float64 is the dense model's training: the first steps of `benchmarks/steps.py`, one size a family."""

from __future__ import annotations

import pytest

from benchmarks.steps import FAMILIES, Steps

SIZES = {"llama": 4, "gpt2": 3, "phi3": 4, "gptj": 2, "bert": 3, "t5": 2}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_step_is_that_of_the_dense_model(name: str) -> None:
    found = Steps(name, 10).compare(SIZES[name])
    assert found.loss < 1e-12
    assert found.parameter < 1e-11
    assert found.padding == 0.0


def test_a_dense_run_that_sums_in_another_order_differs_by_rounding_alone() -> None:
    assert 0 < Steps("gpt2", 8).regrouped(0, 3) < 1e-12
