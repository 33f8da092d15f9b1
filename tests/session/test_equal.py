"""Ranks that begin with different models are told so: they would compute with parts of neither."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import autotp
from autotp.errors import PlacementError
from autotp.runtime.groups.launch import run_ranks
from tests.contract.parts import HIDDEN, Mlp, twins, values


class Noisy(nn.Module):
    """Blocks whose input is shifted by a buffer; tensors of every kind beside."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = twins(lambda index: Mlp())
        self.register_buffer("noise", torch.zeros(HIDDEN, dtype=torch.float64), persistent=False)
        self.register_buffer("low", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("small", torch.ones(3).to(torch.float8_e4m3fn))
        self.register_buffer("turns", torch.ones(2, 2, dtype=torch.complex64))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("nothing", torch.ones(0, 3))
        self.register_buffer("unknown", torch.full((2,), float("nan")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x + self.noise)


def differing(name: str) -> str:
    rank = dist.get_rank()
    torch.manual_seed(rank if name == "seed" else 0)
    model = Noisy()
    tensors: dict[str, Any] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if name in tensors:
        with torch.no_grad():
            tensors[name].add_(rank)
    if name == "more" and rank:
        model.register_buffer("further", torch.ones(1))
    x = values(2, 3, HIDDEN)
    try:
        parallel = autotp.parallelize(model, example=(x,))
    except PlacementError as error:
        return str(error)
    return f"equal: {float(parallel(x).sum()):.9f}"


SAID = {
    "seed": "different numbers in blocks.blocks.0.up.weight",
    "blocks.blocks.1.down.bias": "different numbers in blocks.blocks.1.down.bias",
    "noise": "different numbers in noise",
    "low": "different numbers in low",
    "turns": "different numbers in turns",
    "count": "different numbers in count",
    "more": "different tensors in the model",
    "nothing": "equal",
}


def all_of_them() -> list[str]:
    return [differing(name) for name in SAID]


def test_ranks_begin_with_one_model() -> None:
    for found in run_ranks(all_of_them, 2):
        for text, said in zip(found, SAID.values(), strict=True):
            assert said in text, found
