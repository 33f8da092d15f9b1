"""Operators that make new tensors of other sizes: sums, products, lookups, and several tensors in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .lengths import Lengths, Size, same
from .made import Made, New, are_alike, is_real


def joined(lengths: Lengths, tensors: Sequence[Any], dim: int = 0) -> Made:
    """Tensors one behind the other, along one dim."""
    first, *others = tensors
    if not are_alike(first, *others) or any(each.dim() != first.dim() for each in others) or not first.dim():
        return None
    dim %= first.dim()
    for each in tensors:
        if not same(each.stride()[-1], 1) or any(same(size, 1) or lengths.product(size) is None for size in each.shape):
            return None
        if not all(
            same(own, size) for i, (own, size) in enumerate(zip(each.shape, first.shape, strict=True)) if i != dim
        ):
            return None
    sizes = list(first.shape)
    sizes[dim] = sum(each.shape[dim] for each in tensors)
    return New(sizes, first.dtype)


def stacked(lengths: Lengths, tensors: Sequence[Any], dim: int = 0) -> Made:
    """Tensors side by side, along a new dim."""
    first, *others = tensors
    if not are_alike(first, *others) or any(
        each.dim() != first.dim() or not all(map(same, each.shape, first.shape)) for each in others
    ):
        return None
    sizes = list(first.shape)
    sizes.insert(dim + len(sizes) + 1 if dim < 0 else dim, len(tensors))
    return New(sizes, first.dtype) if lengths.are_known(sizes) else None


def reduced(lengths: Lengths, x: FakeTensor, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> Made:
    """Sums or means over some dims."""
    if not (is_real(x) and lengths.are_known(x.shape) and dims) or dtype not in (None, x.dtype):
        return None
    over = {dim % x.dim() for dim in dims}
    if keepdim:
        return New([1 if dim in over else size for dim, size in enumerate(x.shape)], x.dtype)
    return New([size for dim, size in enumerate(x.shape) if dim not in over], x.dtype)


def product_and_bias(lengths: Lengths, bias: FakeTensor, x: Any, y: Any) -> Made:
    """A product of matrices with a row added to it."""
    fits = are_alike(bias, x, y) and bias.dim() == 1 and same(bias.shape[0], y.shape[-1])
    return product(lengths, x, y) if fits else None


def looked_up(lengths: Lengths, table: FakeTensor, places: Any, *options: Any) -> Made:
    """Rows of a table."""
    if type(places) is not FakeTensor or places.fake_device != table.fake_device or table.dim() != 2:
        return None
    sizes = [*places.shape, table.shape[1]]
    return New(sizes, table.dtype) if lengths.is_dense(places) and lengths.are_known(sizes) else None


def indexed(lengths: Lengths, x: FakeTensor, indices: Sequence[Any]) -> Made:
    """Rows, by their places."""
    rows = indices[0] if len(indices) == 1 else None
    if type(rows) is not FakeTensor or rows.dtype != torch.int64 or rows.dim() != 1 or not x.dim():
        return None
    sizes = [*rows.shape, *x.shape[1:]]
    plain = lengths.is_dense(x) and lengths.is_dense(rows) and rows.fake_device == x.fake_device
    return New(sizes, x.dtype) if plain and not any(same(size, 1) for size in sizes) else None


def softmax(lengths: Lengths, x: FakeTensor, dim: int, half_to_float: bool) -> Made:
    """Shares of one along a dim."""
    return New(x.shape, x.dtype) if is_real(x) and lengths.is_dense(x) and not half_to_float else None


def product(lengths: Lengths, x: FakeTensor, y: Any) -> Made:
    """A product of matrices."""
    if not are_alike(x, y):
        return None
    if x.dim() != y.dim() or not same(x.shape[-1], y.shape[-2]) or not all(map(same, x.shape[:-2], y.shape[:-2])):
        return None
    sizes = [*x.shape[:-1], y.shape[-1]]
    return New(sizes, x.dtype) if lengths.are_known(sizes) else None


def convolved(
    lengths: Lengths,
    x: FakeTensor,
    weight: Any,
    bias: Any,
    steps: Sequence[Size],
    padding: Sequence[Size],
    spread: Sequence[Size],
    transposed: bool,
    further: Sequence[Size],
    groups: Size,
) -> Made:
    """A convolution of what lies in order. Elsewhere than on a CPU what computes it may lay it out in another one."""
    if transposed or not are_alike(x, weight) or x.fake_device.type != "cpu" or not 2 < x.dim() == weight.dim():
        return None
    if not (bias is None or are_alike(x, bias)) or not (lengths.is_dense(x) and lengths.is_dense(weight)):
        return None
    numbers = [*x.shape[1:], *weight.shape, *steps, *padding, *spread, groups]
    if not all(isinstance(number, int) for number in numbers) or min(*steps, *spread, groups) < 1 or min(padding) < 0:
        return None
    channels, fits = weight.shape[0], x.shape[1] == weight.shape[1] * groups and not weight.shape[0] % groups
    ways = [list(each) * (x.dim() - 2) if len(each) == 1 else list(each) for each in (steps, padding, spread)]
    if (
        not fits
        or any(len(each) != x.dim() - 2 for each in ways)
        or not (bias is None or list(bias.shape) == [channels])
    ):
        return None
    manners = zip(x.shape[2:], weight.shape[2:], *ways, strict=True)
    sizes = [(size + 2 * pad - far * (width - 1) - 1) // step + 1 for size, width, step, pad, far in manners]
    return New([x.shape[0], channels, *sizes], x.dtype) if all(size > 0 for size in sizes) else None


def layer_norm(lengths: Lengths, x: FakeTensor, sizes: Sequence[Size], weight: Any, bias: Any, eps: float) -> Made:
    """With the statistics, which are of the same type on a CPU."""
    given = [each for each in (weight, bias) if each is not None]
    of = x.shape[x.dim() - len(sizes) :]
    if not (is_real(x) and x.fake_device.type == "cpu" and lengths.are_known(x.shape) and 0 < len(sizes) <= x.dim()):
        return None
    if not all(map(same, sizes, of)) or not all(
        type(each) is FakeTensor
        and each.fake_device == x.fake_device
        and each.dim() == len(of)
        and all(map(same, each.shape, of))
        for each in given
    ):
        return None
    statistics = New([*x.shape[: x.dim() - len(of)], *([1] * len(of))], x.dtype)
    return New(x.shape, x.dtype), statistics, statistics


def batch_norm(
    lengths: Lengths, x: FakeTensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *numbers: float
) -> Made:
    """Where statistics are computed, torch writes into the running ones."""
    return None if training else batch_norm_by_running(lengths, x, weight, bias, mean, variance, *numbers)


def batch_norm_by_running(
    lengths: Lengths, x: FakeTensor, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> Made:
    """With running statistics. On a CPU it hands on none of them."""
    given = [each for each in (weight, bias) if each is not None]
    if not is_real(x) or x.dim() < 2 or x.fake_device.type != "cpu" or any(same(size, 1) for size in x.shape):
        return None
    if not all(type(each) is FakeTensor and each.dim() == 1 for each in (mean, variance, *given)):
        return None
    if not (lengths.is_dense(x) and all(same(each.shape[0], x.shape[1]) for each in (mean, variance, *given))):
        return None
    return New(x.shape, x.dtype), New([0], x.dtype), New([0], x.dtype)
