"""How inputs lie in memory, where the traced code makes use of it: a trace has others, and holds for such only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from ...errors import TraceError

# By the number of an input, its dims from the largest stride to the smallest: so it lies in memory, without gaps.
Orders: TypeAlias = Mapping[int, tuple[int, ...]]

_ORDER = frozenset({torch.Tensor.is_contiguous, torch.Tensor.stride, torch.Tensor.dim_order})
# What gives the tensor itself or a copy, or nothing, as it lies in memory: of an input that outlives the call.
_LAYING = frozenset(
    getattr(place, name)
    for name in "contiguous view view_as reshape reshape_as flatten ravel".split()
    for place in (torch.Tensor, torch)
    if hasattr(place, name)
)

# What says whether all numbers of a tensor are in memory: a trace has sparse ones of the state as others.
LAYOUTS = frozenset(
    {
        *(getattr(torch.Tensor, name).__get__ for name in ("is_sparse", "is_sparse_csr", "is_mkldnn", "layout")),
        torch.Tensor.to_dense,
    }
)


def asks_for_order(function: Any) -> bool:
    """Returns if a function of torch says, or depends on, how its first argument lies in memory."""
    return function in _ORDER or function in _LAYING


def asked(function: Any, tensor: torch.Tensor, inputs: Mapping[int, int]) -> set[int]:
    """The inputs of which it matters then: `inputs` are their numbers, by the memory that they have in the trace."""
    number = inputs.get(storage_of(tensor))
    return set(inputs.values()) if function in _ORDER else set[int]() if number is None else {number}


def is_asked_of_all(function: Any) -> bool:
    """Returns if what it says goes back to how any tensor lies that was read before: results lie as what they are made of."""
    return function in _ORDER


def strides_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """How a tensor of the state lies in memory, as far as its code is told."""
    return tuple(tensor.stride()) if tensor.layout is torch.strided else (str(tensor.layout),)


def orders_of(numbers: Iterable[int], tensors: Sequence[torch.Tensor]) -> Orders:
    """In which order of dims these of the inputs lie. Raises TraceError for one that has gaps, as no input of a trace has."""
    orders = {number: tuple(stride_order(tensors[number])) for number in sorted(numbers)}
    if not all(lies_in(tensors[number], order) for number, order in orders.items()):
        raise TraceError("it makes use of how a tensor lies in memory, and is given one that has gaps")
    return orders


def lies_in(tensor: torch.Tensor, order: Sequence[int]) -> bool:
    """Returns if a tensor lies in memory in an order of its dims, without gaps."""
    return tensor.layout is torch.strided and tensor.permute(*order).is_contiguous()


def stride_order(tensor: torch.Tensor) -> list[int]:
    """Dims from the largest stride to the smallest, in place where they do not decide (size one, expanded)."""
    strides = [int(stride) for stride in tensor.stride()] if tensor.layout is torch.strided else []
    if not strides or any(s == 0 for s in strides) or tensor.is_contiguous():
        return list(range(tensor.dim()))
    return sorted(range(tensor.dim()), key=lambda i: -strides[i])


def storage_of(tensor: torch.Tensor) -> int:
    """Which memory a tensor has, real or not."""
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)
