"""What the operators that blocks are made of give, where it is plain to see: sizes, strides and type.

What is said here is what torch says; where it is not plain, nothing is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor

from .lengths import Lengths, Size, same

aten = torch.ops.aten


@dataclass(frozen=True)
class View:
    """A part of a tensor's memory."""

    of: FakeTensor
    sizes: Sequence[Size]
    strides: Sequence[Size]
    further: Size = 0  # elements from where that tensor begins


@dataclass(frozen=True)
class New:
    """A tensor of its own, without gaps: in order, or with its dims from the outermost to the innermost in another one."""

    sizes: Sequence[Size]
    dtype: torch.dtype
    order: Sequence[int] | None = None


Made: TypeAlias = View | New | None


def _view(lengths: Lengths, x: FakeTensor, sizes: Sequence[Size]) -> Made:
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


def _times(number: int, symbols: Counter[sympy.Symbol], sizes: Sequence[Size]) -> Size | None:
    """A product, of sizes that are at hand; None where a symbol is none of these."""
    known = {size.node.expr: size for size in sizes if isinstance(size, torch.SymInt)}
    if symbols.keys() - known.keys():
        return None
    factors: list[Size] = [known[symbol] for symbol in symbols.elements()]
    return math.prod(factors, start=number) if number != 1 or not factors else math.prod(factors[1:], start=factors[0])


def _transpose(lengths: Lengths, x: FakeTensor, one: int, other: int) -> Made:
    order = list(range(x.dim()))
    order[one], order[other] = order[other], order[one]
    return _permute(lengths, x, order)


def _t(lengths: Lengths, x: FakeTensor) -> Made:
    return _transpose(lengths, x, 0, 1) if x.dim() == 2 else None


def _permute(lengths: Lengths, x: FakeTensor, order: Sequence[int]) -> Made:
    sizes, strides = x.shape, x.stride()
    return View(x, [sizes[dim] for dim in order], [strides[dim] for dim in order])


def _unsqueeze(lengths: Lengths, x: FakeTensor, dim: int) -> Made:
    dim = dim + x.dim() + 1 if dim < 0 else dim
    sizes, strides = list(x.shape), list(x.stride())
    stride = sizes[dim] * strides[dim] if dim < len(sizes) else 1
    return View(x, [*sizes[:dim], 1, *sizes[dim:]], [*strides[:dim], stride, *strides[dim:]])


def _expand(lengths: Lengths, x: FakeTensor, sizes: Sequence[Size], implicit: bool = False) -> Made:
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


def _slice(lengths: Lengths, x: FakeTensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Made:
    size, first, last = x.shape[dim], 0 if start is None else start, end
    if not all(isinstance(each, int) for each in (size, first, step, 0 if last is None else last)) or step < 1:
        return None
    part = range(*slice(first, last, step).indices(size))
    sizes, strides = list(x.shape), list(x.stride())
    sizes[dim], strides[dim] = len(part), step * strides[dim]
    return View(x, sizes, strides, part.start * x.stride()[dim]) if part else None


def _select(lengths: Lengths, x: FakeTensor, dim: int, index: Any) -> Made:
    size = x.shape[dim]
    if not isinstance(index, int) or not isinstance(size, int) or not -size <= index < size:
        return None
    sizes, strides = list(x.shape), list(x.stride())
    del sizes[dim]
    stride = strides.pop(dim)
    return View(x, sizes, strides, (index % size) * stride)


def _clone(lengths: Lengths, x: FakeTensor, *, memory_format: torch.memory_format = torch.preserve_format) -> Made:
    in_order = memory_format is torch.contiguous_format and lengths.dense(x.shape) is not None
    return New(x.shape, x.dtype) if in_order or lengths.is_dense(x) else None


def _to_copy(lengths: Lengths, x: FakeTensor, *, dtype: torch.dtype) -> Made:
    return New(x.shape, dtype) if lengths.is_dense(x) else None


def _is_real(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _pointwise(lengths: Lengths, x: FakeTensor, *numbers: Any, **options: Any) -> Made:
    """Of floating point, with numbers or words."""
    if not all(each is None or type(each) in (int, float, str) for each in (*numbers, *options.values())):
        return None
    return _like(lengths, x) if _is_real(x) else None


def _like(lengths: Lengths, x: FakeTensor) -> Made:
    """Of all that an operator takes the first, which has all sizes of what it makes, says how that lies."""
    if lengths.is_dense(x):
        return New(x.shape, x.dtype)
    order = lengths.order(x)
    return New(x.shape, x.dtype, order) if order is not None else None


def _binary(lengths: Lengths, x: FakeTensor, y: Any, *, alpha: Any = 1) -> Made:
    """Of floating point, where the first or the second has all the sizes of the result."""
    if not _is_number(alpha):
        return None
    if _is_number(y):
        return _pointwise(lengths, x)
    if not (_is_real(x) and _are_alike(x, y)):
        return None
    if not (x.dim() and y.dim()):
        return _like(lengths, x if x.dim() else y)
    if lengths.is_dense(x) and lengths.is_dense(y):
        larger = next((large.shape for large, small in ((x, y), (y, x)) if _fits(small.shape, large.shape)), None)
        return None if larger is None else New(larger, x.dtype)
    # Where one lies in another order a size of one may lie anywhere.
    return _like(lengths, x) if _fits(y.shape, x.shape) and not any(same(size, 1) for size in x.shape) else None


def _are_alike(x: FakeTensor, *others: Any) -> bool:
    """Returns if tensors are of one type and on one device."""
    kind = x.dtype, x.fake_device
    return all(type(each) is FakeTensor and (each.dtype, each.fake_device) == kind for each in others)


def _where(lengths: Lengths, x: FakeTensor, one: Any, other: Any) -> Made:
    if (
        type(one) is not FakeTensor
        or not _are_alike(one, other)
        or one.fake_device != x.fake_device
        or one.dim()
        or other.dim()
    ):
        return None
    return New(x.shape, one.dtype) if lengths.is_dense(x) else None


def _cat(lengths: Lengths, tensors: Sequence[Any], dim: int = 0) -> Made:
    first, *others = tensors
    if not _are_alike(first, *others) or any(each.dim() != first.dim() for each in others) or not first.dim():
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
    along = [each.shape[dim] for each in tensors]
    if not all(isinstance(size, int) for size in along):
        return None
    sizes[dim] = sum(along)
    return New(sizes, first.dtype)


def _fits(small: Sequence[Size], large: Sequence[Size]) -> bool:
    """Returns if a tensor of some sizes is repeated to be of other ones, or has these."""
    pairs = zip(small[::-1], large[::-1], strict=False)
    return len(small) <= len(large) and all(same(own, size) or same(own, 1) for own, size in pairs)


def _reduced(lengths: Lengths, x: FakeTensor, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> Made:
    if not (_is_real(x) and lengths.is_dense(x) and dims) or dtype not in (None, x.dtype):
        return None
    over = {dim % x.dim() for dim in dims}
    if keepdim:
        return New([1 if dim in over else size for dim, size in enumerate(x.shape)], x.dtype)
    return New([size for dim, size in enumerate(x.shape) if dim not in over], x.dtype)


def _addmm(lengths: Lengths, bias: FakeTensor, x: Any, y: Any) -> Made:
    fits = _are_alike(bias, x, y) and bias.dim() == 1 and same(bias.shape[0], y.shape[-1])
    return _mm(lengths, x, y) if fits else None


def _embedding(lengths: Lengths, table: FakeTensor, places: Any, *options: Any) -> Made:
    if type(places) is not FakeTensor or places.fake_device != table.fake_device or table.dim() != 2:
        return None
    sizes = [*places.shape, table.shape[1]]
    return New(sizes, table.dtype) if lengths.is_dense(places) and lengths.dense(sizes) is not None else None


def _index(lengths: Lengths, x: FakeTensor, indices: Sequence[Any]) -> Made:
    """Rows, by their places."""
    rows = indices[0] if len(indices) == 1 else None
    if type(rows) is not FakeTensor or rows.dtype != torch.int64 or rows.dim() != 1 or not x.dim():
        return None
    sizes = [*rows.shape, *x.shape[1:]]
    plain = lengths.is_dense(x) and lengths.is_dense(rows) and rows.fake_device == x.fake_device
    return New(sizes, x.dtype) if plain and not any(same(size, 1) for size in sizes) else None


def _softmax(lengths: Lengths, x: FakeTensor, dim: int, half_to_float: bool) -> Made:
    return New(x.shape, x.dtype) if _is_real(x) and lengths.is_dense(x) and not half_to_float else None


def _mm(lengths: Lengths, x: FakeTensor, y: Any) -> Made:
    if not _are_alike(x, y):
        return None
    if x.dim() != y.dim() or not same(x.shape[-1], y.shape[-2]) or not all(map(same, x.shape[:-2], y.shape[:-2])):
        return None
    sizes = [*x.shape[:-1], y.shape[-1]]
    return New(sizes, x.dtype) if lengths.dense(sizes) is not None else None


_ALONE = "neg abs exp log sqrt rsqrt reciprocal sin cos tanh sigmoid silu gelu relu softplus clamp".split()
AT_ONCE: Mapping[Any, Callable[..., Made]] = {
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default), _view),
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.permute.default: _permute,
    aten.unsqueeze.default: _unsqueeze,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    **{getattr(aten, name).default: _pointwise for name in _ALONE},
    aten.pow.Tensor_Scalar: _pointwise,
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), _binary),
    **dict.fromkeys((aten.mean.dim, aten.sum.dim_IntList), _reduced),
    **dict.fromkeys((aten.mm.default, aten.bmm.default), _mm),
    aten.addmm.default: _addmm,
    aten.embedding.default: _embedding,
    aten.index.Tensor: _index,
    aten._softmax.default: _softmax,
    aten.where.self: _where,
    aten.cat.default: _cat,
}
