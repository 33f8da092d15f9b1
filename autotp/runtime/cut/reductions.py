"""Reductions over all elements of a cut tensor: each rank's part of it, and one collective. What several ranks hold counts
once, padding never. Reductions over some dims, and those that a gradient goes back through, are of whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...outside.own import FUNCTIONS
from .origin import IsCut, parts_only
from .padding import present
from .whole import on_whole

T = torch.Tensor
INFINITY = float("inf")
# An integer as numbers of few bits, whose sums double precision holds for up to 2**30 elements; and the least integer.
_BITS = 22
_LOW, _LEAST = (1 << _BITS) - 1, torch.iinfo(torch.int64).min
Reduction = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


def norms(tensors: Sequence[Any], order: float, dtype: torch.dtype | None = None) -> list[T]:
    """The norm of every tensor, of an order that is positive; those of cut ones at one collective for all that are alike."""
    found: list[Any] = [
        None if isinstance(each, IsCut) else torch.linalg.vector_norm(each, order, dtype=dtype) for each in tensors
    ]
    for kind in {type(each) for each in tensors if isinstance(each, IsCut)}:
        places = [i for i, each in enumerate(tensors) if type(each) is kind]
        op = "max" if order == INFINITY else "sum"
        with parts_only():
            terms = [_powers(tensors[i], order, dtype) for i in places]
            total = _over_ranks([tensors[i] for i in places], terms, "the norm", op)
            values = total if order == INFINITY else total ** (1 / order)
        for i, value in zip(places, values.unbind(), strict=True):
            found[i] = value.to((dtype or tensors[i].dtype).to_real())
    return found


def _over_ranks(tensors: Sequence[Any], terms: Sequence[T], what: str, op: str) -> T:
    """The sum, or the largest, of what every rank has found of some tensors, in double precision."""
    wide = [term if term.is_complex() else term.double() for term in terms]
    total = tensors[0].sum_over_shards(FUNCTIONS.stack(wide), op)
    return tensors[0].autotp_origin.all_reduce(total, what, op)


def _powers(tensor: Any, order: float, dtype: torch.dtype | None) -> T:
    """What this rank's part adds to the sum (or the maximum) that a norm is made of."""
    part, origin = present(tensor), tensor.autotp_origin
    wide = dtype or (torch.float32 if part.dtype in (torch.float16, torch.bfloat16) else part.dtype)
    if order == INFINITY:
        return part.abs().amax() if part.numel() else part.new_zeros(())
    if not origin.shares[1]:
        return origin.shares[0] * torch.linalg.vector_norm(part, order, dtype=wide).double() ** order
    return counted(tensor, part.abs().double() ** order).sum()


def counted(tensor: Any, values: T) -> T:
    """Values of each element of the part, as much of them as makes the sum over all ranks count each once."""
    number, uneven = tensor.autotp_origin.shares
    for dim, share in uneven:
        start, shape = tensor.starts()[dim], [-1 if i == dim else 1 for i in range(values.dim())]
        values = values * share[start : start + values.shape[dim]].to(values.device, values.dtype).view(shape)
    return values * number


def is_recorded(tensor: Any) -> bool:
    """Returns if autograd records what is done with a tensor."""
    with parts_only():
        return torch.is_grad_enabled() and bool(tensor.requires_grad)


class _Sum(torch.autograd.Function):
    """The sum over all elements of the whole, or a share of it. Every rank has its gradient, and so that of each element."""

    @staticmethod
    def forward(ctx, part, tensor, share):  # type: ignore[no-untyped-def]
        ctx.tensor, ctx.share = tensor, share
        return _sum(tensor, "sum", share=share)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return _Spread.apply(gradient if ctx.share == 1 else gradient / ctx.share, ctx.tensor), None, None


class _Spread(torch.autograd.Function):
    """The gradient of the sum, which is that of each element of the part, as a function of it."""

    @staticmethod
    def forward(ctx, gradient, tensor):  # type: ignore[no-untyped-def]
        ctx.tensor = tensor
        spread = gradient.expand(tensor.local().shape).clone()
        for dim, where in tensor.padding_here():
            spread.index_fill_(dim, where, 0)
        return spread

    @staticmethod
    def backward(ctx, parts):  # type: ignore[no-untyped-def]
        with parts_only():
            return _Sum.apply(parts, ctx.tensor.wrap(parts.detach()), 1), None


def _sum(tensor: Any, what: str, of: Callable[[T], T] | None = None, share: int = 1) -> T:
    """The sum of the elements, or of a function of them, divided by a number before it is rounded."""
    part = present(tensor)
    part = part if of is None else of(part)
    if not (part.is_floating_point() or part.is_complex()):
        return _whole_sum(tensor, part, what)
    total = counted(tensor, part.to(torch.complex128 if part.is_complex() else torch.float64)).sum()
    return (_over_ranks([tensor], [total], what, "sum")[0] / share).to(part.dtype)


def _whole_sum(tensor: Any, part: T, what: str) -> T:
    """The sum of integers, to the last digit. Each is three numbers of few bits, whose sums are exact but for the shares that
    ranks have of an element, and are rounded."""
    part = part.long()
    thirds = [(part >> 2 * _BITS), (part >> _BITS) & _LOW, part & _LOW]
    totals = _over_ranks([tensor] * 3, [counted(tensor, third.double()).sum() for third in thirds], what, "sum")
    high, middle, low = totals.round().long()
    return (((high << _BITS) + middle) << _BITS) + low


def _extreme(tensor: Any, what: str, sign: int) -> T:
    """The largest element, or with the sign -1 the smallest."""
    if not tensor.dtype.is_floating_point:
        return _whole_extreme(tensor, what, sign)
    part = present(tensor, -INFINITY * sign).double() * sign
    own = part.amax() if part.numel() else part.new_tensor(-INFINITY)
    found = FUNCTIONS.stack([own.nan_to_num(-INFINITY, INFINITY, -INFINITY), own.isnan().double()])
    largest, unknown = tensor.autotp_origin.all_reduce(tensor.sum_over_shards(found, "max"), what, "max")
    value = torch.where(unknown > 0, torch.full_like(largest, float("nan")), largest * sign)
    return value.to(tensor.dtype)


def _whole_extreme(tensor: Any, what: str, sign: int) -> T:
    """The same of integers. The order of their complements is the other way round, and these cannot overflow."""
    part = present(tensor).long() if sign > 0 else ~present(tensor).long()
    for dim, where in tensor.padding_here():
        part = part.index_fill(dim, where, _LEAST)
    own = part.amax() if part.numel() else part.new_tensor(_LEAST)
    found = tensor.autotp_origin.all_reduce(tensor.sum_over_shards(own, "max"), what, "max")
    return (found if sign > 0 else ~found).to(tensor.dtype)


def _plain_sum(tensor: Any, what: str, share: int = 1) -> T:
    if not is_recorded(tensor):
        return _sum(tensor, what, share=share)
    with parts_only():
        return _Sum.apply(tensor.local(), tensor, share)


def _mean(tensor: Any, what: str) -> T:
    return _plain_sum(tensor, what, tensor.autotp_origin.shape.numel())


def _count(tensor: Any, what: str) -> T:
    return _sum(tensor, what, lambda part: part != 0)


def _answer(tensor: Any, found: T) -> T:
    """Yes or no, of the type that torch gives."""
    return found.to(torch.uint8) if tensor.dtype is torch.uint8 else found


# What is computed of a cut tensor and a name for it, by the name that torch's functions have.
_OVER_ALL: dict[str, Callable[[Any, str], T]] = {
    "sum": _plain_sum,
    "mean": _mean,
    "max": lambda tensor, what: _extreme(tensor, what, 1),
    "min": lambda tensor, what: _extreme(tensor, what, -1),
    "amax": lambda tensor, what: _extreme(tensor, what, 1),
    "amin": lambda tensor, what: _extreme(tensor, what, -1),
    "any": lambda tensor, what: _answer(tensor, _count(tensor, what) > 0),
    "all": lambda tensor, what: _answer(tensor, _count(tensor, what) == tensor.autotp_origin.shape.numel()),
    "count_nonzero": _count,
}


def _over_all(name: str) -> Reduction:
    compute = _OVER_ALL[name]

    def reduce(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        tensor: Any = args[0] if args else kwargs.get("input")
        others = {key for key, value in kwargs.items() if value is not None and key != "input"}
        linear = name in ("sum", "mean")
        known = isinstance(tensor, IsCut) and len(args) < 2 and others <= ({"dtype"} if linear else set())
        if not known or _is_odd(tensor, name) or (is_recorded(tensor) and not _is_recordable(tensor, linear)):
            return on_whole(func, args, kwargs)
        if kwargs.get("dtype") is not None:
            tensor = tensor.to(kwargs["dtype"])
        found = compute(tensor, name)
        return found if kwargs.get("dtype") is None else found.to(kwargs["dtype"])

    return reduce


def _is_odd(tensor: Any, name: str) -> bool:
    """Returns if torch itself refuses a reduction, or gives what has no order."""
    with parts_only():
        empty, kind = tensor.autotp_origin.shape.numel() == 0, tensor.dtype
    averaged = kind.is_floating_point or kind.is_complex or name != "mean"
    return empty or not averaged or (kind.is_complex and name not in ("sum", "mean"))


def _is_recordable(tensor: Any, linear: bool) -> bool:
    return linear and type(tensor.local()) is T and not hasattr(tensor, "_spec")


def _has_norm(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _norm_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A norm of one tensor over all its dims; any other, and one that a gradient goes back through, is of the whole."""
    tensor: Any = args[0] if args else kwargs.get("input")
    rest = args[1:]
    given = rest[0] if rest else kwargs.get("ord", kwargs.get("p"))
    order = 2.0 if given in (None, "fro") else given
    others = len(rest) > 1 or any(kwargs.get(name) is not None for name in ("dim", "out")) or kwargs.get("keepdim")
    of_matrix = func is torch.linalg.norm and given is not None and tensor.dim() > 1
    number = isinstance(order, (int, float)) and order > 0
    known = isinstance(tensor, IsCut) and number and _has_norm(tensor)
    if others or of_matrix or not known or is_recorded(tensor):
        return on_whole(func, args, kwargs)
    return norms([tensor], float(order), kwargs.get("dtype"))[0]


def _foreach_norm(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    def of(tensors: Any, ord: float = 2, dtype: torch.dtype | None = None) -> Any:
        if ord <= 0 or any(isinstance(each, IsCut) and (is_recorded(each) or not _has_norm(each)) for each in tensors):
            return on_whole(func, args, kwargs)
        return norms(list(tensors), float(ord), dtype)

    return of(*args, **kwargs)


REDUCTIONS: dict[Any, Reduction] = {
    **{getattr(place, name): _over_all(name) for name in _OVER_ALL for place in (torch, T)},
    **dict.fromkeys((torch.linalg.vector_norm, torch.linalg.norm, torch.norm, T.norm), _norm_by),
    torch._foreach_norm: _foreach_norm,
}
