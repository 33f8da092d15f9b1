"""Hooks that keep what a module in one block computes: the other blocks have programs, which fill the same cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import autotp
from autotp.errors import TraceError
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import FAMILIES
from tests.parts import distance

IDS = torch.arange(24).reshape(2, 12) * 7 % 200 + 5
INNER = ("layers.1.mlp", "layers.1.self_attn.o_proj", "layers.0.mlp.act_fn")


def llama() -> Any:
    torch.manual_seed(0)
    return build_model(FAMILIES["llama"].config(), meta=False).double().eval()


def kept_by(model: Any, path: str, run: Callable[[], Any]) -> list[torch.Tensor]:
    """What a module gives during a run, as a hook appends it to a list."""
    kept: list[torch.Tensor] = []
    module = model.model.get_submodule(path)
    hook = module.register_forward_hook(lambda module, given, result: kept.append(result.detach().clone()))
    run()
    hook.remove()
    return kept


def activations(model: Any) -> list[torch.Tensor]:
    """Of calls with a cache, and of writing."""
    found = [model(IDS).logits.detach()]
    for path in INNER:
        found += kept_by(model, path, lambda: model(IDS))
        found += kept_by(model, path, lambda: model.generate(IDS, max_new_tokens=3, do_sample=False))
        found += [model.generate(IDS, max_new_tokens=3, do_sample=False)]
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            found += kept_by(model, path, lambda cache=cache: model(IDS, past_key_values=cache))  # type: ignore[misc]
            found += [model(IDS[:, :k], past_key_values=cache).logits for k in (2, 1)]
    return found


def gradients_at_modules(model: Any) -> list[torch.Tensor]:
    """Gradients that hooks keep with `retain_grad`, as for Grad-CAM."""
    found: list[torch.Tensor] = []
    for path in INNER:
        kept: list[torch.Tensor] = []

        def keep(module: nn.Module, given: Any, result: torch.Tensor, kept: list[torch.Tensor] = kept) -> None:
            result.retain_grad()
            kept.append(result)

        hook = model.model.get_submodule(path).register_forward_hook(keep)
        model(IDS).logits[:, -1, 7].sum().backward()
        hook.remove()
        found += [tensor.grad.clone() for tensor in kept if tensor.grad is not None]
    return found


def hooks_on_rank() -> tuple[float, float, str]:
    with Float64():
        dense, parallel = llama(), autotp.parallelize(llama())
        apart = distance(activations(parallel), activations(dense))
        kept = distance(gradients_at_modules(parallel), gradients_at_modules(dense))
        fresh, cache, said = autotp.parallelize(llama()), DynamicCache(config=dense.config), ""
        with torch.no_grad():
            fresh(IDS, past_key_values=cache)
            before = [layer.keys.clone() for layer in cache.layers]
            try:
                kept_by(fresh, INNER[0], lambda: fresh(IDS[:, :2], past_key_values=cache))
            except TraceError as error:
                said = str(error)
        assert torch.equal(before[1], cache.layers[1].keys)
        return apart, kept, said


@pytest.mark.sweep
def test_hooks_that_keep_what_a_block_computes() -> None:
    for apart, kept, said in run_ranks(hooks_on_rank, 2):
        assert apart < 1e-10
        assert kept < 1e-10
        assert "its objects hold slices" in said
