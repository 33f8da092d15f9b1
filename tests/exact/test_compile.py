"""`torch.compile` of a parallel model on real ranks: exact, no graph break, no more compilations than the dense model's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import DynamicCache, StaticCache

import autotp
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from tests.families import FAMILIES, WRITERS

pytestmark = pytest.mark.matrix

Run = Callable[[Any], list[torch.Tensor]]


@dataclass(frozen=True)
class Compiled:
    """The largest difference to the dense model, compilations of both, and graph breaks."""

    difference: float
    dense: int
    parallel: int
    breaks: list[str]


def prompts(length: int) -> torch.Tensor:
    return torch.arange(3, 3 + 2 * length).view(2, length)


@torch.no_grad()
def forward(model: Any) -> list[torch.Tensor]:
    return [model(prompts(length), use_cache=False).logits for length in (19, 19, 23, 31)]


def train(model: Any) -> list[torch.Tensor]:
    results = []
    for length in (19, 23, 31):
        logits = model(prompts(length), use_cache=False).logits
        logits.square().mean().backward()
        results.append(logits.detach())
    return results


def decode(cache_of: Callable[[Any], Any]) -> Run:
    @torch.no_grad()
    def run(model: Any) -> list[torch.Tensor]:
        cache, ids, results = cache_of(model.config), prompts(9), []
        for _ in range(6):
            logits = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:]
            results.append(logits)
            ids = logits.argmax(-1)
        return results

    return run


RUNS: dict[str, Run] = {
    "forward": forward,
    "decode, a cache that grows": decode(lambda config: DynamicCache(config=config)),
    "decode, a static cache": decode(lambda config: StaticCache(config=config, max_cache_len=40)),
    "training step": train,
}


def compile_and_count(model: nn.Module, run: Run) -> tuple[list[torch.Tensor], int, list[str]]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counter = CompileCounterWithBackend("eager")
    results = run(torch.compile(model, backend=counter))
    return results, counter.frame_count, list(torch._dynamo.utils.counters["graph_break"])


def compare(name: str, kinds: list[str]) -> dict[str, Compiled]:
    """Runs on a rank."""
    torch.manual_seed(0)
    dense = build_model(WRITERS[name].config(), meta=False).double()
    parallel = autotp.parallelize(copy.deepcopy(dense))
    found = {}
    for kind in kinds:
        run = RUNS[kind]
        expected, count, _ = compile_and_count(dense, run)
        results, own_count, breaks = compile_and_count(parallel, run)
        pairs = zip(expected, results, strict=True)
        difference = max(float((mine - true).abs().max() / true.abs().max()) for true, mine in pairs)
        found[kind] = Compiled(difference, count, own_count, breaks)
    return found


# bloom's blocks return attention weights that nobody reads.
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama", ["forward", "decode, a static cache"]),
        pytest.param("llama", ["decode, a cache that grows", "training step"], marks=pytest.mark.sweep),
        pytest.param("bloom", ["forward"], marks=pytest.mark.long),
    ],
)
def test_compiled_models_are_exact_and_whole_graphs(name: str, kinds: list[str]) -> None:
    for found in run_ranks(compare, 2, name, kinds):
        for kind, compiled in found.items():
            assert compiled.difference < 1e-12, kind
            assert not compiled.breaks, kind
            assert compiled.parallel <= compiled.dense, kind


def compile_blocks(layers: int) -> tuple[int, float]:
    """Runs on a rank: compilations of a model whose blocks are compiled one by one, and the difference to the dense one."""
    torch.manual_seed(0)
    config = copy.deepcopy(WRITERS["llama"].config())
    config.num_hidden_layers = layers
    dense = build_model(config, meta=False).double()
    parallel: Any = autotp.parallelize(copy.deepcopy(dense))
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    for block in parallel.model.layers:
        block.compile(backend=counter)
    (own,), (true,) = ([forward(model)[0]] for model in (parallel, dense))
    return counter.frame_count, float((own - true).abs().max())


def test_equal_blocks_compile_once() -> None:
    for compilations, difference in run_ranks(compile_blocks, 2, 5):
        assert difference < 1e-12
        assert compilations == 2  # one length, and any length


def compile_with_autograd(names: list[str]) -> float:
    """Runs on a rank: the largest difference of compiled forwards and backwards to those of dense models."""
    return max(map(compiled_difference, names))


def compiled_difference(name: str) -> float:
    torch.manual_seed(0)
    torch._dynamo.reset()
    dense = build_model({**FAMILIES, **WRITERS}[name].config(), meta=False).double()
    parallel: Any = autotp.parallelize(copy.deepcopy(dense))
    (own,), (true,) = (train_once(model) for model in (torch.compile(parallel, backend="aot_eager"), dense))
    gradients = autotp.full_gradients(parallel)
    worst = max(float((gradients[n] - p.grad).abs().max() / p.grad.abs().max()) for n, p in dense.named_parameters())
    return max(worst, float((own - true).abs().max() / true.abs().max()))


def train_once(model: Any) -> list[torch.Tensor]:
    logits = model(prompts(19), use_cache=False).logits
    logits.square().mean().backward()
    return [logits.detach()]


@pytest.mark.sweep
# In qwen3 parameters' sums are one call, in gpt_neox those of two branches, in deepseek_v2 two gathers are.
@pytest.mark.parametrize(
    "names", [["gpt2", "qwen3"], pytest.param(["gpt_neox", "deepseek_v2"], marks=pytest.mark.long)], ids=str
)
def test_compiled_backwards_give_the_same_gradients(names: list[str]) -> None:
    assert max(run_ranks(compile_with_autograd, 2, names)) < 1e-9
