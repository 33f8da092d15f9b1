"""Reductions and operators that look along a dim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ..call import Call, is_tensor
from ..facts import Fact
from ..record import Operator, Rule
from ..term import ONE, Dims, axis


def _reduced(dims: Dims, over: list[int], keep: bool) -> Dims:
    if keep:
        return tuple(ONE if i in over else dim for i, dim in enumerate(dims))
    return tuple(dim for i, dim in enumerate(dims) if i not in over)


def total(call: Call) -> Fact:
    """sum and mean contract the dims they reduce: on a cut axis the result is a partial sum."""
    dims = call.dims(call.get("self"))
    over = call.dim_list(call.get("dim"), len(dims))
    result = _reduced(dims, over, bool(call.get("keepdim", False)))
    return call.fact(result, contracts=[dims[i] for i in over], linear=[[0]], zeros=[[0]])


def extreme(call: Call) -> Fact:
    """var, amax, norm, logsumexp, ...: the reduced dims must be whole. max and min of two operands reduce none."""
    if is_tensor(call.get("other")):
        return call.fact(call.broadcast([call.dims(operand) for operand in call.operands]))
    dims = call.dims(call.get("self"))
    over = call.dim_list(call.get("dim"), len(dims))
    call.pin([dims[i] for i in over], "it is reduced here and not by a sum")
    result = _reduced(dims, over, bool(call.get("keepdim", False)))
    value = call.node.meta["val"]
    count = 1 if isinstance(value, torch.Tensor) else len(value)
    return call.fact(*([result] * count))


def length(call: Call) -> Fact:
    """linalg_vector_norm: as `extreme`, but the Euclidean one is the root of a sum (see `placement/norms.py`)."""
    is_root = call.get("ord", 2) == 2 and call.get("dtype") is None and not call.get("self").meta["val"].is_complex()
    if not is_root:
        return extreme(call)
    dims = call.dims(call.get("self"))
    over = call.dim_list(call.get("dim"), len(dims))
    result = _reduced(dims, over, bool(call.get("keepdim", False)))
    return call.fact(result, contracts=[dims[i] for i in over], zeros=[[0]])


def running_sum(call: Call) -> Fact:
    """cumsum: as `along`, and linear."""
    return replace(_RUNNING(call), linear=(frozenset([0]),), zeros=(frozenset([0]),))


def fourier(call: Call) -> Fact:
    """The transforms of torch.fft: the dims that are transformed must be whole, the others are untouched."""
    dims = call.dims(call.get("self"))
    over, sizes = call.dim_list(call.get("dim"), len(dims)), call.shape()
    if call.get("dim") is None and call.get("s") is not None:  # as many of the last dims as there are sizes
        over = over[-len(call.get("s")) :]
    result = tuple(axis(sizes[i]) if i in over else dim for i, dim in enumerate(dims))
    call.pin([term for i in over for term in (dims[i], result[i])], "it is transformed along this dimension")
    return call.fact(result)


def along(reason: str) -> Callable[[Call], Fact]:
    """softmax, cumprod, sort, ...: the shape stays, the dim it looks along must be whole."""

    def rule(call: Call) -> Fact:
        dims = call.dims(call.get("self"))
        position = call.get("dim", -1)
        call.pin([dims[i] for i in call.dim_list(position, len(dims))], reason)
        value = call.node.meta["val"]
        count = 1 if isinstance(value, torch.Tensor) else len(value)
        return call.fact(*([dims] * count))

    return rule


def top(call: Call) -> Fact:
    """topk: the dim is whole, and as long as k afterwards."""
    dims = call.dims(call.get("self"))
    position = call.dim(call.get("dim", -1), len(dims))
    call.pin([dims[position]], "it chooses along this dimension")
    kept = call.fresh([call.shape(0)[position]])
    call.pin(kept, "it chooses along this dimension")
    result = (*dims[:position], *kept, *dims[position + 1 :])
    return call.fact(result, result)


def counted(call: Call) -> Fact:
    """histc: how many of all values are in every bin."""
    bins = call.fresh(call.shape())
    call.pin([*call.dims(call.get("self")), *bins], "its values are counted here")
    return call.fact(bins)


def normalised(call: Call) -> Fact:
    """layer_norm, rms_norm: the scale and shift have the normalised dims. Statistics are sums over these: linear in no operand,
    so that a norm over a cut dim is not left as it is (see `placement/norms.py`)."""
    dims = call.dims(call.get("input"))
    over = dims[len(dims) - len(call.get("normalized_shape")) :]
    for name in ("weight", "bias"):
        if isinstance(call.get(name), torch.fx.Node):
            for left, right in zip(call.dims(call.get(name)), over, strict=True):
                call.equal(left, right)
    return call.fact(dims, contracts=over)


_RUNNING = along("it runs along this dimension")
RULES: dict[str, Rule] = {
    "aten.sum": total,
    "aten.mean": Operator(total, local="mean"),
    **dict.fromkeys(
        (
            "aten.var",
            "aten.std",
            "aten.amax",
            "aten.amin",
            "aten.max",
            "aten.min",
            "aten.argmax",
            "aten.argmin",
            "aten.prod",
            "aten.any",
            "aten.all",
            "aten.logsumexp",
            "aten.norm",
            "aten.median",
            "aten.var_mean",
            "aten.std_mean",
            "aten.nansum",
            "aten.aminmax",
            "aten.count_nonzero",
            "aten.mode",
            "aten.nanmedian",
            "aten.kthvalue",
        ),
        extreme,
    ),
    **dict.fromkeys(
        ("aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax"),
        Operator(along("it is normalised along this dimension"), gradient="result"),
    ),
    **dict.fromkeys(
        ("aten.cumprod", "aten.sort", "aten.argsort", "aten.logcumsumexp", "aten.cummax", "aten.cummin"), _RUNNING
    ),
    "aten.cumsum": running_sum,
    **dict.fromkeys(
        (f"aten.fft_{inverse}{kind}" for kind in ("fft", "rfft", "hfft") for inverse in ("", "i")), fourier
    ),
    **dict.fromkeys((f"aten.fft_{inverse}fft{n}" for n in ("2", "n") for inverse in ("", "i", "r", "ir")), fourier),
    "aten.topk": top,
    "aten.histc": counted,
    "aten.linalg_vector_norm": length,
    "aten.layer_norm": normalised,
    "aten.rms_norm": normalised,
}
