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


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_dense_runs_that_sum_in_another_order_differ_by_rounding_alone(name: str) -> None:
    gaps = [Steps(name, 3).regrouped(seed, 3) for seed in range(2)]
    assert max(gaps) < 1e-12
    assert len(set(gaps)) == 2 or max(gaps) > 0
