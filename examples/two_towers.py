"""A model with two towers, one for images and one for words, that meet in a similarity.

python examples/two_towers.py
"""

from __future__ import annotations

import torch
from torch import nn

import autotp


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, 96), nn.Linear(width, 96), nn.Linear(96, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (
            part(y).view(*y.shape[:2], self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class TwoTowers(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, vocabulary: int = 200) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=4, stride=4)
        self.image_layers = nn.ModuleList(Layer(width, heads) for _ in range(2))
        self.words = nn.Embedding(vocabulary, width)
        self.text_layers = nn.ModuleList(Layer(width, heads // 2) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        image = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.image_layers:
            image = layer(image)
        text = self.words(ids)
        for layer in self.text_layers:
            text = layer(text)
        return self.scale.exp() * image.mean(1) @ text.mean(1).T


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and the arguments of one forward."""
    return TwoTowers(), (torch.randn(3, 3, 16, 16), torch.randint(0, 200, (3, 11)))


if __name__ == "__main__":
    model, example = build()
    for unit in autotp.plan(model, tp=2, example=example).units:
        print(unit.instances, {parameter.name: parameter.placement for parameter in unit.parameters})
    report = autotp.verify(model, tp=2, example=example)
    print(f"largest differences: {[f'{d.name} {d.error:.0e}' for d in report.worst()]}")
    report.raise_for_failure()
