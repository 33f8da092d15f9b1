"""A Llama cut by hand as Megatron-LM cuts it: what somebody writes who knows the model.

Queries, keys, values, gate and up by columns, the output projections by rows with one all-reduce each, the head by columns
with one all-gather. The embedding stays whole, so it needs no collective.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

Reduce = Callable[[torch.Tensor], torch.Tensor]
Gather = Callable[[torch.Tensor], torch.Tensor]


class Row(nn.Module):
    """A linear layer with this rank's inputs; the sum over ranks is the output."""

    def __init__(self, weight: torch.Tensor, reduce: Reduce) -> None:
        super().__init__()
        self.weight, self.reduce = nn.Parameter(weight, requires_grad=False), reduce

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.reduce(F.linear(value, self.weight))


class Head(nn.Module):
    """A linear layer with this rank's outputs; all of them on every rank."""

    def __init__(self, weight: torch.Tensor, gather: Gather) -> None:
        super().__init__()
        self.weight, self.gather = nn.Parameter(weight, requires_grad=False), gather

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.gather(F.linear(value, self.weight))


def split(model: nn.Module, rank: int, size: int, reduce: Reduce, gather: Gather) -> nn.Module:
    """Cut a dense `LlamaForCausalLM`, in place."""

    def rows(weight: torch.Tensor) -> torch.Tensor:
        return weight.detach().chunk(size, 0)[rank].clone()

    def columns(weight: torch.Tensor) -> torch.Tensor:
        return weight.detach().chunk(size, 1)[rank].clone()

    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
            linear.weight = nn.Parameter(rows(linear.weight), requires_grad=False)
        attention.o_proj = Row(columns(attention.o_proj.weight), reduce)
        mlp.down_proj = Row(columns(mlp.down_proj.weight), reduce)
    model.lm_head = Head(rows(model.lm_head.weight), gather)
    return model


def gloo_reduce(value: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks of the world, in place."""
    dist.all_reduce(value)
    return value


def gloo_gather(value: torch.Tensor) -> torch.Tensor:
    """The ranks' last dims one after the other."""
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value)
    return torch.cat(parts, -1)
