"""How fast a parallel Llama trains on two ranks of this machine, and what a rank holds, beside other ways to cut it.

    python benchmarks/train.py

Two processes of one thread, float32, random weights, AdamW; each way runs in processes of its own, so that the largest
resident memory is its own too. The split by hand is the one of `benchmarks/peers`, with Megatron's conjugate collectives
through gloo and gathered logits; transformers and DeepSpeed take part where installed. Shown are medians over the steps,
with the least in brackets.
"""

from __future__ import annotations

import argparse
import functools
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).parents[1]))

import autotp
from autotp.runtime.groups.launch import run_ranks
from benchmarks.inference import BATCH, PROMPT, RANKS, SHAPE
from benchmarks.kept import bytes_kept
from benchmarks.peers import libraries, megatron

DENSE, BY_HAND, TRANSFORMERS, DEEPSPEED, OURS = "dense", "by hand", "transformers", "DeepSpeed AutoTP", "autotp"
SEQUENCE = "autotp, sequence parallel"


@dataclass(frozen=True)
class Measured:
    """One way to train: seconds of every step, the losses, bytes of parameters with gradients and optimizer, bytes that blocks
    keep for the backward, and the largest resident memory of a rank before (libraries, the dense weights) and after."""

    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    held: int
    kept: int
    resident: tuple[int, int]


class _Sum(torch.autograd.Function):
    """The sum over ranks; its gradient is the same on all."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _Share(torch.autograd.Function):
    """A value that every rank goes on with by itself; its gradient is the sum."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


class _Join(torch.autograd.Function):
    """All ranks' outputs beside each other; its gradient is the rank's own slice."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, value.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.chunk(dist.get_world_size(), -1)[dist.get_rank()]


def by_hand(model: nn.Module) -> nn.Module:
    """A dense Llama cut as Megatron-LM cuts it, to be trained."""
    split = megatron.split(model, dist.get_rank(), dist.get_world_size(), _Sum.apply, _Join.apply)
    split.requires_grad_()
    share = lambda module, args: (_Share.apply(args[0]), *args[1:])  # noqa: E731
    for layer in split.model.layers:
        # Queries, keys and values, or gate and up, read one shared value: the norm's result.
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.register_forward_hook(lambda module, args, result: _Share.apply(result))
    split.lm_head.register_forward_pre_hook(share)
    return split


def under_transformers(model: Any) -> nn.Module:
    """The model by way of a checkpoint, which is how transformers cuts one."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        model.save_pretrained(folder[0])
    dist.barrier()
    cut = libraries.transformers_tp(folder[0])
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    return cut


WAYS: Mapping[str, Callable[[Any], Any]] = {
    DENSE: lambda model: model,
    BY_HAND: by_hand,
    TRANSFORMERS: under_transformers,
    DEEPSPEED: libraries.deepspeed_tp_to_train,
    OURS: autotp.parallelize,
    SEQUENCE: functools.partial(autotp.parallelize, sequence_parallel=True),
}


def train(way: str, shape: Mapping[str, int], steps: int) -> Measured | str:
    """Runs on a rank; says what is missing where a library is not installed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**shape))
    before = largest_resident()
    try:
        model = WAYS[way](model)
    except libraries.Absent as absent:
        return str(absent)
    # A fused step takes no DTensors, which transformers makes, together with plain tensors.
    groups = [[p for p in model.parameters() if isinstance(p, DTensor) == kind] for kind in (True, False)]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups if group], 1e-4, fused=True)
    ids = torch.randint(3, shape["vocab_size"], (BATCH, PROMPT), generator=torch.Generator().manual_seed(1))
    seconds, losses = [], []
    for step in range(steps + 1):
        start = time.perf_counter()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        held = bytes_held(model, optimizer)
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        seconds += [time.perf_counter() - start] if step else []  # the first one traces
    resident = before, largest_resident()
    # The blocks, and the embedding and the norm around them.
    kept = bytes_kept(lambda: model.model(input_ids=ids, use_cache=False).last_hidden_state)
    return Measured(tuple(seconds), tuple(losses), held, kept, resident)


def bytes_held(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, gradients and the optimizer's state."""
    parameters = list(model.parameters())
    states = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    tensors = [*parameters, *(p.grad for p in parameters if p.grad is not None), *states]
    return sum(_own(tensor).nbytes for tensor in tensors)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: ours and DTensors have the whole one's shape."""
    return tensor.local() if hasattr(tensor, "local") else getattr(tensor, "_local_tensor", tensor)  # type: ignore[no-any-return]


def largest_resident() -> int:
    """The largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="how many steps are measured")
    parser.add_argument("--small", action="store_true", help="a model that takes no time, to try the benchmark itself")
    options = parser.parse_args()
    shape = {**SHAPE, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256} if options.small else SHAPE
    found = {
        way: run_ranks(train, 1 if way == DENSE else RANKS, way, shape, options.steps, timeout_s=600, limit_s=3600)[0]
        for way in WAYS
    }
    Console(width=160).print(report(found))
    measured = {way: own for way, own in found.items() if isinstance(own, Measured)}
    worst = max(
        abs(a - b) for own in measured.values() for a, b in zip(own.losses, measured[DENSE].losses, strict=True)
    )
    print(f"largest difference of a loss: {worst:.1e}")
    if worst > 1e-3:
        sys.exit("the ways to train do not agree")


def report(found: Mapping[str, Measured | str]) -> Table:
    """Times and memory of all ways."""
    columns = (
        "seconds a step",
        "of dense",
        "parameters, gradients, optimizer",
        "of dense",
        "kept for backward",
        "of dense",
    )
    table = Table("", *columns, "largest resident")
    dense = found[DENSE]
    assert isinstance(dense, Measured)
    for way, measured in found.items():
        if isinstance(measured, str):
            table.add_row(way, measured)
            continue
        middle = statistics.median(measured.seconds)
        table.add_row(
            way,
            f"{middle:.2f} [{min(measured.seconds):.2f}]",
            f"{middle / statistics.median(dense.seconds):.2f}",
            f"{measured.held / 2**20:.0f} MiB",
            f"{measured.held / dense.held:.4f}",
            f"{measured.kept / 2**20:.0f} MiB",
            f"{measured.kept / dense.kept:.3f}",
            f"{measured.resident[1] / 2**30:.2f} GiB",
        )
    return table


if __name__ == "__main__":
    main()
