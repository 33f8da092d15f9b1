"""Real ranks: families on 2 and on 4 gloo processes, equal to the dense model and at the planned collectives.

`make test` runs those in which most differs on two, a sweep every third, `make long` all on four; the simulator
(test_families.py) runs all at every size.
"""

from __future__ import annotations

import copy
import importlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.checkpoint.full import state_of
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64, planned_collectives
from tests.families import FAMILIES, MIXTURES

pytestmark = pytest.mark.matrix

EXAMPLES = ("nano_gpt", "mlp_classifier", "two_towers")
ALL = (*FAMILIES, "qwen2_moe", "gpt_oss", *EXAMPLES)
# Fewer heads than ranks, fused and tied, parallel with one head, low-rank, full-width norms, an encoder, experts (apart).
SAMPLE = ("phi3", "gpt2", "deepseek_v2", "gpt_oss", "two_towers")


@dataclass(frozen=True)
class Outcome:
    """Largest relative differences of one family on one rank, and its collectives."""

    name: str
    output: float
    gradient: float
    state: float
    counted: dict[str, int]
    planned: dict[str, int]


def compare_families(names: list[str]) -> list[Outcome]:
    """Runs on a rank."""
    return [compare(name) for name in names]


def compare(name: str) -> Outcome:
    torch.manual_seed(0)
    dense, args, kwargs = model_and_inputs(name)
    parallel = copy.deepcopy(dense)
    with Float64():
        expected = first(dense(*args, **kwargs))
        expected.square().sum().backward()
        autotp.parallelize(parallel, example=args or None)
        state = state_of(parallel)
        with state.ranks.logging() as log:
            result = first(parallel(*args, **kwargs))
            result.square().sum().backward()
    gradients, tensors = autotp.full_gradients(parallel), autotp.full_state_dict(parallel)
    true = {n: p.grad for n, p in dense.named_parameters(remove_duplicate=False) if p.grad is not None}
    largest = max(float(g.abs().max()) for g in true.values())
    return Outcome(
        name,
        float((result - expected).detach().abs().max() / expected.detach().abs().max()),
        max(difference(gradients[n], g, largest) for n, g in true.items()),
        max(float((tensors[n] - t).abs().max()) for n, t in dense.state_dict().items() if t.is_floating_point()),
        dict(Counter(f"{c.kind} {c.phase} {c.of}" for c in log.calls)),
        planned_collectives(state.plan),
    )


def model_and_inputs(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    if name in EXAMPLES:
        model, args = importlib.import_module(f"examples.{name}").build()
        return model.double(), tuple(a.double() if a.is_floating_point() else a for a in args), {}
    model = build_model((FAMILIES | MIXTURES)[name].config(), meta=False).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    if name == "vit":
        return model, (), {"pixel_values": torch.randn(2, 3, 32, 32, dtype=torch.float64)}
    return model, (), {"input_ids": torch.randint(3, 250, (2, 11))}


def first(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


def difference(found: torch.Tensor | None, true: torch.Tensor, largest: float) -> float:
    assert found is not None
    own = float(true.abs().max())
    return float((found - true).abs().max()) / (own if own > 1e-9 * largest else largest)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_families_on_real_ranks(size: int, sweep: bool) -> None:
    names = list(ALL if size > 2 else ALL[::3] if sweep else SAMPLE)
    everywhere = run_ranks(compare_families, size, names, limit_s=600)
    assert all([outcome.name for outcome in outcomes] == names for outcomes in everywhere)
    for outcome in (outcome for outcomes in everywhere for outcome in outcomes):
        assert outcome.output < 1e-9, outcome
        assert outcome.gradient < 1e-9, outcome
        assert outcome.state == 0, outcome
        assert outcome.counted == outcome.planned, outcome
