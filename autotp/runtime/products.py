"""Linear layers over a few rows, which is what writing a token at a small batch is.

On a CPU the time of such a product is the time of reading the weight. MKL reads it at about half the machine's speed in
x Wᵀ for two to four rows of float32, and at all of it in (W xᵀ)ᵀ as long as x stays in the first-level cache: 3.0 ms
instead of 6.9 for 4 rows and a weight of 16000 x 1024 on one EPYC core.
"""

from __future__ import annotations

import torch

MOST_ROWS = 4
MOST_VALUES = 4096  # 16 KiB of float32, half of a first-level cache
LEAST_WEIGHT = 1 << 16  # a smaller one stays in the cache, and Python takes longer than the product


def linear(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear`: (..., in) times (out, in) plus (out), by whichever of two products is faster."""
    if torch.compiler.is_compiling() or not _is_few(value, weight):
        return torch.nn.functional.linear(value, weight, bias)
    rows = value.reshape(-1, weight.shape[1]).t()
    product = torch.mm(weight, rows) if bias is None else torch.addmm(bias.unsqueeze(1), weight, rows)
    return product.t().reshape(*value.shape[:-1], weight.shape[0])


def _is_few(value: torch.Tensor, weight: torch.Tensor) -> bool:
    """Returns if there are few enough rows, in a place and a type where that counts; training has its own history."""
    size = value.numel()
    return (
        size <= MOST_VALUES
        and weight.numel() >= LEAST_WEIGHT
        and 2 <= size // max(weight.shape[1], 1) <= MOST_ROWS
        and value.dtype is torch.float32
        and weight.dtype is torch.float32
        and weight.is_contiguous()
        and value.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not (torch.is_grad_enabled() and (value.requires_grad or weight.requires_grad))
    )
