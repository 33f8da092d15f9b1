"""Operands of one function of cut tensors: what a rank holds of each, and what is made of that."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from .kinds import label
from .origin import IsCut, parts_only
from .padding import operand, undivided
from .views import WholeView

T = torch.Tensor


@functools.cache
def computes_itself(kind: type) -> bool:
    """Returns if objects of a class that is neither torch's nor ours say themselves what functions do with them."""
    root = kind.__module__.partition(".")[0]
    return root not in ("torch", "autotp") and kind.__torch_function__ is not torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]


def fits(leader: Any, value: T) -> bool:
    """Returns if a tensor is cut as another is."""
    return type(value) is type(leader) and leader.autotp_origin.fits(value.autotp_origin)  # type: ignore[attr-defined]


def held_for(leader: Any, value: T, func: Any) -> T:
    """An operand of a function as it meets what a rank holds of another: the elements that are there, with their history."""
    if isinstance(value, IsCut):
        if fits(leader, value):
            return operand(func, value)
        value = value.whole("an operation with a tensor that is cut otherwise")
    if isinstance(value, WholeView):
        value = value.taken(func if isinstance(func, str) else label(func))
    return value if value.dim() == 0 else undivided(func, leader, leader.part_of(value), value.shape)


def result_of(leader: Any, result: Any, operands: Sequence[T]) -> Any:
    """A result cut like an operand: the operand that was written to itself, or a tensor that may share its memory."""
    if not isinstance(result, T) or isinstance(result, IsCut):
        return result
    with parts_only():
        shared = type(result) is T and result.untyped_storage()._cdata == leader.local().untyped_storage()._cdata
    if not shared and result.grad_fn is not None and torch.is_anomaly_enabled():
        result = result.clone()  # its derivative may be made of the result, whose padding stays as it is
    made = leader.claim(result, leader.autotp_memory if shared else None)
    if not shared:
        made.zero_padding()  # a cosine of nothing is one
    return made


def note_written(value: Any) -> None:
    """After a write into what may be a cut tensor."""
    if isinstance(value, IsCut):
        value.note_written()


def is_whole_of(leader: Any, value: Any) -> bool:
    """Returns if a tensor is a whole one of the sizes of a cut one. A new tensor that is made of both is whole too: it may be
    given to a whole one as its `.data`, as in an average that is kept so, and torch takes its memory without asking."""
    return not isinstance(value, IsCut) and value.dim() > 0 and value.shape == leader.autotp_origin.shape


def joins(leader: Any, value: Any) -> bool:
    """Returns if a tensor may meet a cut one element by element. One that a transform of functions has wrapped has no memory."""
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return False
    own, shape = value.shape, leader.autotp_origin.shape
    alike = len(own) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(own), reversed(shape), strict=False))
    if not alike or not (torch.is_grad_enabled() and value.requires_grad):
        return alike
    return fits(leader, value) or (own == shape and not hasattr(leader, "_spec"))
