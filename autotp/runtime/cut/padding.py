"""Padding of cut tensors: it is zero, as programs rely on. What it is worth in one function of others must not come through."""

from __future__ import annotations

from typing import Any

import torch

from ..collectives.added import at_once
from ..collectives.slices import keep_padding_zero
from .kinds import DIVIDING, PASSING, SHARING

T = torch.Tensor


def present(tensor: Any, nothing: float | bool = 0) -> T:
    """What this rank holds, with a value of one's own where there is padding."""
    part: T = tensor.local().detach()
    for dim, where in tensor.padding_here():
        part = part.index_fill(dim, where, nothing)
    return part


def operand(func: Any, value: Any) -> Any:
    """A cut tensor as a function by element reads it, inside `parts_only()`. A derivative may be no number at zero: padding gets
    no gradient. Nor may it divide an integer, which is an error."""
    origin = value.autotp_origin
    if not origin.has_padding or hasattr(value, "_spec") or func in SHARING:
        return value
    if value.requires_grad and torch.is_grad_enabled():
        value = keep_padding_zero(value, origin.layouts, origin.ranks.rank)
        return _harmless(value, origin) if torch.is_anomaly_enabled() and func not in PASSING else value
    divides = func in DIVIDING and not (value.is_floating_point() or value.is_complex())
    return present(value, 1) if divides else value


def undivided(func: Any, leader: Any, part: T, shape: torch.Size) -> T:
    """This rank's part of a whole operand, of this shape, with one in its padding where an integer is divided by that."""
    origin = leader.autotp_origin
    numbered = part.is_floating_point() or part.is_complex()
    if func not in DIVIDING or numbered or not origin.padding or hasattr(leader, "_spec"):
        return part
    fewer = len(origin.layouts) - len(shape)
    for dim, where in origin.padding_on(part.device):
        if dim >= fewer and shape[dim - fewer] == origin.shape[dim]:
            part = part.index_fill(dim - fewer, where, 1)
    return part


def _harmless(value: T, origin: Any) -> T:
    """An operand with a number in its padding at which most functions have a slope: somebody looks for those that are none."""
    for dim, where in origin.padding_on(value.device):
        value = value.index_fill(dim, where, 0.5)
        at_once(value.grad_fn)
    return value
