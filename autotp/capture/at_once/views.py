"""Views: other sizes of the same memory."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor

from .lengths import Lengths, Size, same
from .made import Made, View


def viewed(lengths: Lengths, x: FakeTensor, sizes: Sequence[Size]) -> Made:
    """Other sizes, of which one may be left to find."""
    sizes = list(sizes)
    whole, known = lengths.products(x.shape), lengths.products([size for size in sizes if not same(size, -1)])
    if whole is None or known is None:
        return None
    (all_of, symbols), (some_of, others) = whole, known
    rest = symbols - others
    if others - symbols or all_of % some_of:
        return None
    missing = [dim for dim, size in enumerate(sizes) if same(size, -1)]
    if len(missing) == 1:
        left = _times(all_of // some_of, rest, x.shape)
        if left is None:
            return None
        sizes[missing[0]] = left
    elif missing or rest or all_of != some_of:
        return None
    strides = lengths.dense(sizes) if lengths.is_dense(x) else lengths.viewed(x, sizes)
    return View(x, sizes, strides) if strides is not None else None


def _times(number: int, symbols: Counter[sympy.Expr], sizes: Sequence[Size]) -> Size | None:
    """A product, of sizes that are at hand; None where a symbol is none of these."""
    known = {size.node.expr: size for size in sizes if isinstance(size, torch.SymInt)}
    if symbols.keys() - known.keys():
        return None
    factors: list[Size] = [known[symbol] for symbol in symbols.elements()]
    return math.prod(factors, start=number) if number != 1 or not factors else math.prod(factors[1:], start=factors[0])


def transposed(lengths: Lengths, x: FakeTensor, one: int, other: int) -> Made:
    """Two dims change places."""
    order = list(range(x.dim()))
    order[one], order[other] = order[other], order[one]
    return permuted(lengths, x, order)


def turned(lengths: Lengths, x: FakeTensor) -> Made:
    """A matrix, its dims the other way round."""
    return transposed(lengths, x, 0, 1) if x.dim() == 2 else None


def permuted(lengths: Lengths, x: FakeTensor, order: Sequence[int]) -> Made:
    """All dims in another order."""
    sizes, strides = x.shape, x.stride()
    return View(x, [sizes[dim] for dim in order], [strides[dim] for dim in order])


def unsqueezed(lengths: Lengths, x: FakeTensor, dim: int) -> Made:
    """One dim more, of size one."""
    dim = dim + x.dim() + 1 if dim < 0 else dim
    sizes, strides = list(x.shape), list(x.stride())
    stride = sizes[dim] * strides[dim] if dim < len(sizes) else 1
    return View(x, [*sizes[:dim], 1, *sizes[dim:]], [*strides[:dim], stride, *strides[dim:]])


def expanded(lengths: Lengths, x: FakeTensor, sizes: Sequence[Size], implicit: bool = False) -> Made:
    """Dims of size one repeated, and new ones before."""
    new = len(sizes) - x.dim()
    if new < 0:
        return None
    own, strides = [*[1] * new, *x.shape], [*[0] * new, *x.stride()]
    made: list[Size] = []
    for dim, size in enumerate(sizes):
        if dim >= new and (same(size, -1) or same(size, own[dim])):
            made.append(own[dim])
        elif same(own[dim], 1) and lengths.product(size) is not None and not same(size, 1):
            made.append(size)
            strides[dim] = 0
        else:
            return None
    return View(x, made, strides)


def sliced(lengths: Lengths, x: FakeTensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Made:
    """A part of one dim, every so many places."""
    size, first, last = x.shape[dim], 0 if start is None else start, end
    if same(first, 0) and same(step, 1) and (last is None or same(last, sys.maxsize) or same(last, size)):
        return View(x, x.shape, x.stride())
    if not all(isinstance(each, int) for each in (size, first, step, 0 if last is None else last)) or step < 1:
        return None
    part = range(*slice(first, last, step).indices(size))
    sizes, strides = list(x.shape), list(x.stride())
    sizes[dim], strides[dim] = len(part), step * strides[dim]
    return View(x, sizes, strides, part.start * x.stride()[dim]) if part else None


def selected(lengths: Lengths, x: FakeTensor, dim: int, index: Any) -> Made:
    """One place of a dim, which goes."""
    size = x.shape[dim]
    if not isinstance(index, int) or not isinstance(size, int) or not -size <= index < size:
        return None
    sizes, strides = list(x.shape), list(x.stride())
    del sizes[dim]
    stride = strides.pop(dim)
    return View(x, sizes, strides, (index % size) * stride)
