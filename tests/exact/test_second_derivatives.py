"""Gradients of gradients, as a penalty on a gradient takes them: those of the dense model, in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import autotp
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.planner.make import make_plan
from autotp.planner.survey import survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Float64
from tests.device.models import dense_model

# One sum a block, two, joined ones, norms over what is cut, whole rows beside cut ones, a bias counted once, gathers.
NAMES = ("llama", "gptj", "gpt_neox", "qwen3", "phi3", "bloom", "olmo2", "deepseek_v2", "mixtral")


def penalised(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits' own gradient, by the input's embeddings, of which the backward then takes the gradient by every weight."""
    model.zero_grad()
    with Float64():
        embedded = model.get_input_embeddings()(ids)
        logits = model(inputs_embeds=embedded, use_cache=False).logits
        (gradient,) = torch.autograd.grad(logits.tanh().square().sum(), embedded, create_graph=True)
        (gradient.square().sum() + logits.square().mean()).backward()
    return gradient.detach()


@pytest.mark.parametrize(
    ("name", "tp"),
    [(name, 2) for name in NAMES[:3]]
    + [
        pytest.param(name, tp, marks=pytest.mark.sweep)
        for name in NAMES
        for tp in (2, 3, 4)
        if (name, tp) not in [(n, 2) for n in NAMES[:3]]
    ],
)
def test_gradients_of_gradients(name: str, tp: int) -> None:
    dense = dense_model(name).eval()
    dense.set_attn_implementation("eager")
    inputs = [torch.arange(rows * 6).reshape(rows, 6) % 50 + 3 for rows in (2, 3)]
    true = []
    for ids in inputs:
        gradient = penalised(dense, ids)
        true.append((gradient, {n: p.grad.clone() for n, p in dense.named_parameters() if p.grad is not None}))
    dense.zero_grad()

    found = survey(dense, examples_for(dense, None))
    plan = make_plan(dense, found, tp)
    compilers = make_compilers(plan, found)

    def differs(ranks: Ranks) -> float:
        model = apply_plan(copy.deepcopy(dense), plan, ranks, compilers)
        worst = 0.0
        for ids, (gradient, expected) in zip(inputs, true, strict=True):
            given = {"input": penalised(model, ids), **autotp.full_gradients(model)}
            for n, value in ({"input": gradient} | expected).items():
                own = given[n]
                assert own is not None, n
                worst = max(worst, float((own - value).abs().max() / value.abs().max().clamp(min=1e-6)))
        return worst

    assert max(simulate(tp, differs)) < 1e-8
