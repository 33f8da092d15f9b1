"""Programs of ranks on the test device: outputs and every gradient are the dense model's, in float64, in every kind of world."""

from __future__ import annotations

from typing import Any

import pytest

from tests.device.models import step_differs
from tests.device.ranks import WORLDS, run_on_device

pytestmark = pytest.mark.usefixtures("device")
TWELVE = (
    "llama", "qwen3", "gemma2", "phi3", "gpt2", "gptj", "falcon_multi_query", "bloom", "opt", "deepseek_v2", "bert", "vit",
)  # fmt: skip
SAMPLE = ("llama",)


def differences(names: tuple[str, ...], options: dict[str, Any]) -> dict[str, float]:
    """Runs on a rank."""
    return {name: step_differs(name, {}, **options) for name in names}


@pytest.mark.sample(1)
@pytest.mark.parametrize("world", ["no backend", "two backends", "device id", "mesh"])
def test_a_world_of_any_kind_computes_what_the_dense_model_does(world: str) -> None:
    for found in run_on_device(differences, 2, SAMPLE, {}, world=world):
        assert max(found.values()) < 1e-9, found


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("size", [2, 4])
def test_twelve_families(size: int, world: str) -> None:
    for found in run_on_device(differences, size, TWELVE, {}, world=world):
        assert max(found.values()) < 1e-9, found


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_experts_and_sequences_cut_over_ranks(size: int) -> None:
    for names, options in ((("mixtral", "qwen2_moe", "gpt_oss"), {}), (TWELVE[:6], {"sequence_parallel": True})):
        for found in run_on_device(differences, size, names, options):
            assert max(found.values()) < 1e-9, found
