"""Linear layers over a few rows, which is what writing a token at a small batch is.

On a CPU the time of such a product is the time of reading the weight. Which product reads it fastest is the processor's and the
library's, and shapes differ: for 4 rows of float32 and a weight of 16000 x 1024, MKL takes 6.9 ms for x Wᵀ and 3.0 for (W xᵀ)ᵀ
on one EPYC core; on a Xeon 5.1 and 7, and 3.8 for W in blocks. So they are tried once for each shape.

Ranks may find different ones, and those differ in rounding. That is for parts that no other rank computes: what every rank
computes alike must be equal to the bit. Runs may find different ones too: who wants them equal to the bit has torch's own.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TypeAlias

import torch

from ...outside.own import FUNCTIONS, NETWORKS

MOST_ROWS = 8
MOST_VALUES = 1 << 14  # 64 KiB of float32, a fraction of a second-level cache
LEAST_WEIGHT = 1 << 16  # a smaller one stays in the cache, and Python takes longer than the product
BLOCK = 128  # outputs
TRIES, WORTH = 9, 1.1  # the least time of so many counts; a smaller gain is chance
DETERMINISTIC = "AUTOTP_DETERMINISTIC"  # a variable of the environment: "1" tries nothing

Product: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
PLAIN: Product = NETWORKS.linear
_found: dict[tuple[int, torch.Size, int], Product] = {}


def may_try() -> bool:
    """Returns if the clock may decide which product computes something."""
    return os.environ.get(DETERMINISTIC, "0") == "0"


def linear(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear`: (..., in) times (out, in) plus (out), by whichever product is fastest."""
    if weight.numel() < LEAST_WEIGHT or torch.are_deterministic_algorithms_enabled() or not _is_few(value, weight):
        return PLAIN(value, weight, bias)
    if torch.compiler.is_compiling():
        return PRODUCTS[_choice(*weight.shape)](value, weight, bias)
    kind = value.numel() // weight.shape[1], weight.shape, torch.get_num_threads()
    product = _found.get(kind)
    if product is None:
        product = _found[kind] = fastest(kind[0], weight)
    return product(value, weight, bias)


def fastest(rows: int, weight: torch.Tensor) -> Product:
    """The product that takes the least time here for so many rows and this weight."""
    with torch.inference_mode():
        value = torch.ones(rows, weight.shape[1], dtype=torch.float32, device="cpu")
        seconds = dict.fromkeys(PRODUCTS, float("inf"))
        for product in PRODUCTS * TRIES:  # in turn: what else the machine does at the time is met by all of them
            seconds[product] = min(seconds[product], _seconds(product, value, weight))
    best = min(PRODUCTS, key=seconds.__getitem__)
    return best if seconds[best] * WORTH < seconds[_plain] else _plain


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _choice(outputs: int, inputs: int) -> int:
    """The fastest product for a weight of this size in a graph, which is for any few rows."""
    return _tried(outputs, inputs, torch.get_num_threads())


@functools.cache
def _tried(outputs: int, inputs: int, threads: int) -> int:
    return PRODUCTS.index(fastest(MOST_ROWS // 2, torch.ones(outputs, inputs, dtype=torch.float32, device="cpu")))


def _plain(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return PLAIN(value, weight, bias)


def _turned(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows = value.reshape(-1, weight.shape[1]).t()
    product = torch.mm(weight, rows) if bias is None else torch.addmm(bias.unsqueeze(1), weight, rows)
    return product.t().reshape(*value.shape[:-1], weight.shape[0])


def _blocked(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As one batched product, of blocks of outputs."""
    rows, (outputs, inputs) = value.reshape(-1, weight.shape[1]), weight.shape
    blocks, rest = outputs // BLOCK, outputs % BLOCK
    cut = weight[: outputs - rest].view(blocks, BLOCK, inputs)
    product = torch.bmm(rows.expand(blocks, *rows.shape), cut.transpose(1, 2)).transpose(0, 1).flatten(1)
    if rest:
        product = FUNCTIONS.cat([product, PLAIN(rows, weight[outputs - rest :], None)], 1)
    if bias is not None:
        product = product + bias
    return product.view(*value.shape[:-1], outputs)


PRODUCTS: tuple[Product, ...] = (_plain, _turned, _blocked)


def _seconds(product: Product, value: torch.Tensor, weight: torch.Tensor) -> float:
    start = time.perf_counter()
    product(value, weight, None)
    return time.perf_counter() - start


def _is_few(value: torch.Tensor, weight: torch.Tensor) -> bool:
    """Returns if there are few enough rows, in a place and a type where that counts; training has its own history."""
    size = value.numel()
    return (
        type(value) is torch.Tensor
        and size <= MOST_VALUES
        and 2 <= size // max(weight.shape[1], 1) <= MOST_ROWS
        and value.dtype is torch.float32
        and weight.dtype is torch.float32
        and weight.is_contiguous()
        and value.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not (torch.is_grad_enabled() and (value.requires_grad or weight.requires_grad))
    )
