"""What a forward keeps for the backward: the memory that was taken while it ran and is still held behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def bytes_kept(run: Callable[[], Any]) -> int:
    """Bytes of the CPU that `run` took and did not give back, with its result. One thread of a process may ask at a time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = run()
    assert result.requires_grad
    return sum(event.self_cpu_memory_usage for event in profiled.key_averages())
