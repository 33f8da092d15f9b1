"""Caches that hold whole values, since a dense model or somebody's own code has filled them: as prefix tuning does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

import autotp
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import FAMILIES

IDS = torch.arange(24).reshape(2, 12) * 7 % 200 + 5


def llama() -> Any:
    torch.manual_seed(0)
    return build_model(FAMILIES["llama"].config(), meta=False).double().eval()


def after_a_dense_model(model: Any, kind: type[Any], length: int) -> list[torch.Tensor]:
    """What follows a text that a dense model has read, and follows it in a copy."""
    settings = {"max_cache_len": 40} if kind is StaticCache else {}
    cache = kind(config=model.config, **settings)
    llama()(IDS, past_key_values=cache)
    twin = copy.deepcopy(cache)
    found = [model(IDS[:, :length], past_key_values=cache).logits, model(IDS[:, :1], past_key_values=cache).logits]
    return [*found, model(IDS[:, :1], past_key_values=twin).logits]


def learned_states(model: Any) -> list[torch.Tensor]:
    """The gradients of states that are parameters."""
    torch.manual_seed(1)
    states = [(torch.randn(2, 2, 3, 8).double(), torch.randn(2, 2, 3, 8).double()) for _ in range(2)]
    leaves = [state.requires_grad_() for pair in states for state in pair]
    loss = model(IDS, past_key_values=DynamicCache(states)).logits.square().mean()
    return list(torch.autograd.grad(loss, leaves))


def uses(model: Any) -> list[torch.Tensor]:
    """Such caches first and between caches of the model's own."""
    found = []
    for kind in (DynamicCache, StaticCache, DynamicCache):
        with torch.no_grad():
            found += [tensor for length in (1, 3) for tensor in after_a_dense_model(model, kind, length)]
        found += learned_states(model)
        found += [model.generate(IDS, max_new_tokens=3, do_sample=False), model(IDS).logits.detach()]
    return found


def on_rank() -> float:
    dense, parallel = llama(), autotp.parallelize(llama())
    with Float64():
        pairs = zip(uses(parallel), uses(dense), strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.sweep
def test_states_that_others_have_put_into_a_cache_are_whole() -> None:
    assert max(run_ranks(on_rank, 2)) < 1e-10
