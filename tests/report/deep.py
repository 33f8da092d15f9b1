"""A module with one block of about 300 nodes."""

import torch
from torch import nn


class Deep(nn.Module):
    """Two MLPs whose activations are long series."""

    def __init__(self, width: int = 64, terms: int = 28) -> None:
        super().__init__()
        self.terms = terms
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.up_again, self.down_again = nn.Linear(width, 8 * width), nn.Linear(8 * width, width)

    def series(self, hidden: torch.Tensor) -> torch.Tensor:
        total = hidden
        for term in range(1, self.terms):
            total = total + torch.tanh(hidden * (1 / term)) * torch.sigmoid(total)
        return total

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(self.series(self.up(x)))
        return x + self.down_again(self.series(self.up_again(x)))
