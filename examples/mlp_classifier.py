"""A plain classifier: linear layers with an activation that does not keep zeros zero, nothing repeated.

python examples/mlp_classifier.py
"""

from __future__ import annotations

import torch
from torch import nn

import autotp


class Classifier(nn.Module):
    def __init__(self, features: int = 30, width: int = 70, classes: int = 10) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.up = nn.Linear(features, width)
        self.down = nn.Linear(width, features)
        self.hidden = nn.Linear(features, 2 * width)
        self.out = nn.Linear(2 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(torch.sigmoid(self.up(self.norm(x))))
        return self.out(torch.relu(self.hidden(x)))


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and the arguments of one forward."""
    return Classifier(), (torch.randn(8, 30),)


if __name__ == "__main__":
    model, example = build()
    for tp in (2, 3, 4):
        report = autotp.verify(model, tp=tp, example=example)
        print(f"tp {tp}: {[f'{d.name} {d.error:.0e}' for d in report.worst()]}, {dict(report.counted)}")
        report.raise_for_failure()
