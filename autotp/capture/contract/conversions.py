"""Modules that convert themselves as they run: `self.router.to(torch.float32)`, say, of what mostly is of that type already.

torch's modules put the converted tensor in the place of the parameter's own, and fake ones they swap, which torch refuses where
anything refers to one weakly. A parameter that is converted to what it is stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def needless_conversions() -> Iterator[None]:
    """Inside, a fake parameter that is swapped with one that is the same memory, and of the same kind, is left as it is."""
    original = torch.utils.swap_tensors

    def swap(one: Any, other: Any) -> None:
        if not (isinstance(one, FakeTensor) and isinstance(other, FakeTensor) and _are_same(one, other)):
            original(one, other)

    torch.utils.swap_tensors = swap
    try:
        yield
    finally:
        torch.utils.swap_tensors = original


def _are_same(one: FakeTensor, other: FakeTensor) -> bool:
    with torch._C.DisableTorchFunction():
        return _looks(one) == _looks(other)


def _looks(tensor: FakeTensor) -> tuple[Any, ...]:
    memory = tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
    return *memory, tensor.dtype, tensor.fake_device, tensor.layout, tensor.requires_grad
