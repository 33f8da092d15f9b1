"""The examples that are not from transformers: equal to the dense model, and cut."""

from __future__ import annotations

import functools
import importlib

import pytest
import torch

import autotp
from autotp.verify import Verifier


@functools.lru_cache(maxsize=1)
def verifier(name: str) -> Verifier:
    torch.manual_seed(0)
    model, example = importlib.import_module(f"examples.{name}").build()
    return Verifier(model, example=example)


@pytest.mark.parametrize("tp", [2, 3, 4, 8])
@pytest.mark.parametrize("name", ["nano_gpt", "mlp_classifier", "two_towers"])
def test_example_equals_the_dense_model(name: str, tp: int) -> None:
    report = verifier(name).verify(tp)
    report.raise_for_failure()
    whole, local = report.elements
    assert local < whole * {2: 0.7, 3: 0.62, 4: 0.55, 8: 0.5}[tp]
    assert sum(report.counted.values()) > 0


@pytest.mark.parametrize("name", ["nano_gpt", "two_towers"])
def test_every_matrix_of_a_block_is_cut(name: str) -> None:
    model, example = importlib.import_module(f"examples.{name}").build()
    for unit in autotp.plan(model, 2, example=example).units:
        if unit.instances[0].endswith("0"):
            matrices = [parameter for parameter in unit.parameters if len(parameter.shape) == 2]
            assert all(parameter.placement != "replicated" for parameter in matrices)
            assert (unit.count("forward"), unit.count("backward")) == (2, 2)
