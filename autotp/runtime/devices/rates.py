"""How fast a rank's device multiplies matrices and copies memory, measured."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch

REPEATS = 7
_LONG_ENOUGH_S = 0.02  # what takes less is measured by how long it takes to begin, too
_SHAPES = ((4, 1), (1, 4), (2, 2))  # how wide the two sides of a weight are, in units


def seconds_of(call: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """The median time of a call, with what it has begun on a device."""
    found = []
    for _ in range(repeats + 1):
        _wait_for(device)
        start = time.perf_counter()
        call()
        _wait_for(device)
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])  # the first one may have allocated memory


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of products of activations and weights, two for each multiplication: the fastest of three shapes."""
    unit = 256
    while True:
        found = [_product(device, dtype, unit, *shape) for shape in _SHAPES]
        if min(seconds for _, seconds in found) > _LONG_ENOUGH_S or unit >= 4096:
            return max(operations / seconds for operations, seconds in found)
        unit *= 2


def _product(device: torch.device, dtype: torch.dtype, unit: int, rows: int, columns: int) -> tuple[float, float]:
    value = torch.randn(4 * unit, columns * unit, device=device).to(dtype)
    weight = torch.randn(rows * unit, columns * unit, device=device).to(dtype)
    seconds = seconds_of(lambda: torch.nn.functional.linear(value, weight), device)
    return 2.0 * value.numel() * weight.shape[0], seconds


def memory_rate(device: torch.device) -> float:
    """Bytes a second that are read or written, by a copy of what no cache holds."""
    size = 2**30 if device.type != "cpu" else 2**27
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device)


def memory_of(device: torch.device, ranks: int) -> float:
    """Bytes of memory of a rank: its device's, or its share of the machine's where ranks compute on CPUs."""
    if device.type == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks
    return float(torch.get_device_module(device.type).mem_get_info(device)[1])


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
