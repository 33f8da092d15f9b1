"""Linear layers over a few rows, which is what writing a token at a small batch is.

On a CPU the time of such a product is the time of reading the weight. Which product reads it faster is the processor's and the
library's: for 4 rows of float32 and a weight of 16000 x 1024, MKL takes 6.9 ms for x Wᵀ and 3.0 for (W xᵀ)ᵀ on one EPYC core, but
for 2 rows 5.2 and 9.9 on a Xeon. So it is tried once in a process.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

MOST_ROWS = 4
MOST_VALUES = 4096  # 16 KiB of float32, half of a first-level cache
LEAST_WEIGHT = 1 << 16  # a smaller one stays in the cache, and Python takes longer than the product
TRIED = (2048, 1024)  # a weight that is tried, of 8 MiB: more than a second-level cache
TRIES, WORTH = 3, 1.2  # the least time of so many counts; a smaller gain is chance


def linear(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear`: (..., in) times (out, in) plus (out), by whichever of two products is faster."""
    few = not torch.compiler.is_compiling() and _is_few(value, weight)
    if few and is_turned_faster(value.numel() // weight.shape[1], torch.get_num_threads()):
        return _turned(value, weight, bias)
    return torch.nn.functional.linear(value, weight, bias)


def _turned(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    rows = value.reshape(-1, weight.shape[1]).t()
    product = torch.mm(weight, rows) if bias is None else torch.addmm(bias.unsqueeze(1), weight, rows)
    return product.t().reshape(*value.shape[:-1], weight.shape[0])


@functools.cache
def is_turned_faster(rows: int, threads: int) -> bool:
    """Returns if (W xᵀ)ᵀ takes less time here than x Wᵀ, for so many rows and so many threads."""
    with torch.inference_mode():
        value, weight = (torch.ones(size, dtype=torch.float32, device="cpu") for size in ((rows, TRIED[1]), TRIED))
        return _seconds(_turned, value, weight) * WORTH < _seconds(torch.nn.functional.linear, value, weight)


def _seconds(product: Callable[..., torch.Tensor], value: torch.Tensor, weight: torch.Tensor) -> float:
    least = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        product(value, weight)
        least = min(least, time.perf_counter() - start)
    return least


def _is_few(value: torch.Tensor, weight: torch.Tensor) -> bool:
    """Returns if there are few enough rows, in a place and a type where that counts; training has its own history."""
    size = value.numel()
    return (
        type(value) is torch.Tensor
        and size <= MOST_VALUES
        and weight.numel() >= LEAST_WEIGHT
        and 2 <= size // max(weight.shape[1], 1) <= MOST_ROWS
        and value.dtype is torch.float32
        and weight.dtype is torch.float32
        and weight.is_contiguous()
        and value.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not (torch.is_grad_enabled() and (value.requires_grad or weight.requires_grad))
    )
