"""Operators that make each element of one element of each tensor, which they repeat as often as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .lengths import Lengths, Size, same
from .made import Made, New, are_alike, is_real
from .order import order_of


def of_one(lengths: Lengths, x: FakeTensor, *numbers: Any, **options: Any) -> Made:
    """Of floating point, with numbers or words."""
    if not all(each is None or type(each) in (int, float, str) for each in (*numbers, *options.values())):
        return None
    return _of(lengths, x.dtype, x) if is_real(x) else None


def of_two(lengths: Lengths, x: FakeTensor, y: Any, *, alpha: Any = 1) -> Made:
    """Of floating point, or one with a number."""
    if not _is_number(alpha):
        return None
    if _is_number(y):
        return of_one(lengths, x)
    return _of(lengths, x.dtype, x, y, is_sum=True) if is_real(x) and are_alike(x, y) else None


def compared(lengths: Lengths, x: FakeTensor, y: Any) -> Made:
    """Which elements of the first are larger, or the like."""
    return _of(lengths, torch.bool, x, y) if are_alike(x, y) and x.dim() and y.dim() else None


def divided_down(lengths: Lengths, x: FakeTensor, number: Any) -> Made:
    """Whole numbers by one."""
    return _of(lengths, x.dtype, x) if type(number) is int and x.dtype is torch.int64 else None


def chosen(lengths: Lengths, x: FakeTensor, one: Any, other: Any) -> Made:
    """One of two values where something holds, else the other."""
    alike = type(one) is FakeTensor and are_alike(one, other) and one.fake_device == x.fake_device
    return _of(lengths, one.dtype, x, one, other) if alike and x.dim() else None


def cloned(lengths: Lengths, x: FakeTensor, *, memory_format: torch.memory_format = torch.preserve_format) -> Made:
    """A copy in memory of its own."""
    if memory_format is torch.contiguous_format:
        return New(x.shape, x.dtype) if lengths.are_known(x.shape) else None
    return _of(lengths, x.dtype, x) if memory_format is torch.preserve_format else None


def converted(lengths: Lengths, x: FakeTensor, *, dtype: torch.dtype) -> Made:
    """The same numbers in another type."""
    return New(x.shape, dtype) if lengths.is_dense(x) else None


def copied_into(lengths: Lengths, x: FakeTensor, y: Any, non_blocking: bool = False) -> Made:
    """What is written into is given back."""
    if type(y) is not FakeTensor or y.dim() > x.dim():
        return None
    pairs = zip(x.shape[x.dim() - y.dim() :], y.shape, strict=True)
    return x if all(same(own, size) or same(size, 1) for own, size in pairs) else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _of(lengths: Lengths, dtype: torch.dtype, *tensors: FakeTensor, is_sum: bool = False) -> Made:
    """What is made of tensors, each of which is as large as all or repeated. Those without dims say nothing of how it lies."""
    larger = [tensor for tensor in tensors if tensor.dim()] or [tensors[0]]
    sizes = lengths.common([tensor.shape for tensor in larger])
    if sizes is None or not lengths.are_known(sizes):
        return None
    is_one_so_large = any(tensor.dim() == len(sizes) and all(map(same, tensor.shape, sizes)) for tensor in larger)
    if is_one_so_large and all(map(lengths.is_dense, larger)):
        return New(sizes, dtype)
    if any(same(size, 1) for size in sizes):
        # Only for a few operators, and for symbols, torch leaves out where a dim of size one lies.
        if not is_sum or all(isinstance(size, int) for size in sizes):
            return None
        if is_one_so_large and all(lengths.is_dense(tensor, ones=False) for tensor in larger):
            return New(sizes, dtype)
        if any(same(tensor.stride()[-3], 1) for tensor in larger if tensor.dim() > 3):
            return None  # channels may come last
    order = order_of(lengths, sizes, [_repeated(tensor, sizes) for tensor in larger])
    return New(sizes, dtype, order) if order is not None else None


def _repeated(tensor: FakeTensor, sizes: Sequence[Size]) -> Sequence[Size]:
    """The strides of a tensor that is repeated to be of some sizes: none where it is."""
    new = len(sizes) - tensor.dim()
    pairs = zip(tensor.shape, sizes[new:], tensor.stride(), strict=True)
    return [0] * new + [stride if same(own, size) else 0 for own, size, stride in pairs]
