"""A small GPT written by hand, in the einops style: split and merge heads by unflatten, permute and einsum.

python examples/nano_gpt.py                       plan and verify in one process
torchrun --nproc-per-node 2 examples/nano_gpt.py  train a few steps on two ranks
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import autotp


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # "b s (three h d) -> three b h s d"
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = torch.einsum("bhij,bhjd->bihd", weights, v)
        return self.out(mixed.flatten(2))  # "b s h d -> b s (h d)"


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class NanoGPT(nn.Module):
    def __init__(
        self, vocabulary: int = 300, width: int = 48, heads: int = 4, layers: int = 3, length: int = 64
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and the arguments of one forward."""
    return NanoGPT(), (torch.randint(0, 300, (3, 13)),)


def train() -> None:
    torch.manual_seed(0)  # the same model and data on every rank
    model, example = build()
    model = autotp.parallelize(model, example=example)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.arange(52).reshape(4, 13)
    for step in range(20):
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    if dist.is_torchelastic_launched():
        dist.init_process_group()
        train()
        dist.destroy_process_group()
    else:
        model, example = build()
        report = autotp.verify(model, tp=2, example=example)
        print(f"largest differences: {[f'{d.name} {d.error:.0e}' for d in report.worst()]}")
        print(f"collectives of one step: {dict(report.counted)}")
        report.raise_for_failure()
