"""What Python costs a token: the dense model and one rank's part of the parallel one, so narrow that nothing else counts.

    python benchmarks/dispatch.py

One process of one thread, a group of two ranks of which the other is made up: what would be sent is copied. Both models
write a token at a batch of four, with a cache, in turns; shown are the least times, which others on the machine do not
disturb, of a whole token and of a block within it.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).parents[1]))

import autotp
from autotp.checkpoint.full import state_of
from benchmarks.inference import BATCH, SHAPE, dense_model

NARROW = {**SHAPE, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256}
PROMPT, STEPS = 16, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30, help="how often each model is measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    dense = dense_model(NARROW)
    models: dict[str, Any] = {"dense": dense, "autotp": parallel(dense)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for _ in range(options.turns):
        for name, model in models.items():
            found[name].append((token(model), block(model)))
    print(f"microseconds, {NARROW['num_hidden_layers']} layers of width {NARROW['hidden_size']}   a token   a block")
    least = {name: [min(column) * 1e6 for column in zip(*rows, strict=True)] for name, rows in found.items()}
    for name, (whole, part) in least.items():
        print(f"{name:38} {whole:8.0f} {part:9.0f}")
    ratios = [own / known for own, known in zip(least["autotp"], least["dense"], strict=True)]
    print(f"{'of the dense one':38} {ratios[0]:8.2f} {ratios[1]:9.2f}")


def parallel(dense: nn.Module) -> nn.Module:
    """One rank's part, which sends nothing."""
    model = autotp.parallelize(copy.deepcopy(dense))
    ranks: Any = state_of(model).ranks
    ranks._all_reduce = lambda value, factors, op: value.clone()
    ranks._all_gather = lambda value, factors: [value, value]
    return model


@torch.no_grad()
def token(model: Any) -> float:
    """Seconds of one token."""
    ids = torch.full((BATCH, 1), 5)
    cache = model(ids.expand(BATCH, PROMPT), use_cache=True).past_key_values
    return least_of(lambda: model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1))


def block(model: Any) -> float:
    """Seconds of one block within a token."""
    began, ended = list[float](), list[float]()
    one = model.model.layers[1]
    hooks = [
        one.register_forward_pre_hook(lambda *_: began.append(time.perf_counter())),
        one.register_forward_hook(lambda *_: ended.append(time.perf_counter())),
    ]
    token(model)
    for hook in hooks:
        hook.remove()
    return min(end - start for start, end in zip(began[1:], ended[1:], strict=True))


def least_of(step: Callable[[], Any]) -> float:
    """The least time of a step."""
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
