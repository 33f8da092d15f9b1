"""The examples that are not from transformers: equal to the dense model, and cut. And the one that fine-tunes."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.verify import Verifier
from examples import finetune_lm
from examples.train_tiny_lm import Recipe, train


@functools.lru_cache(maxsize=1)
def verifier(name: str) -> Verifier:
    torch.manual_seed(0)
    model, example = importlib.import_module(f"examples.{name}").build()
    return Verifier(model, example=example)


@pytest.mark.sample(4)
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


@dataclass
class Found:
    """A result of a class that torch does not see into."""

    logits: torch.Tensor
    labels: tuple[str, ...] = ("one", "two")


class Answers(nn.Module):
    """A model that returns its logits in such an object, alone or beside a tensor."""

    def __init__(self, model: nn.Module, *, beside: bool) -> None:
        super().__init__()
        self.model, self.beside = model, beside

    def forward(self, tokens: torch.Tensor) -> Any:
        found = Found(logits=self.model(tokens))
        return (found, tokens) if self.beside else found


@pytest.mark.parametrize("beside", [False, True])
def test_what_a_model_returns_in_an_object_of_its_own_is_read(beside: bool) -> None:
    torch.manual_seed(0)
    model, example = importlib.import_module("examples.nano_gpt").build()
    report = Verifier(Answers(model, beside=beside), example=example).verify(2)
    report.raise_for_failure()
    assert len(report.outputs) == 1 + beside
    assert report.counted["all_gather forward activation"] == 1


@pytest.mark.sweep
def test_fine_tuning_on_ranks_follows_the_dense_curve(tmp_path: Path) -> None:
    train(tmp_path, Recipe(steps=1, batch=2, length=16, vocabulary=300, width=32, layers=2), verbose=False)
    found = finetune_lm.curves(finetune_lm.Tuning(tmp_path, 3), finetune_lm.MESHES)
    for losses in found.values():
        assert losses[-1] < losses[0]
        assert max(finetune_lm.gap(losses, found["dense"])) < 1e-5
