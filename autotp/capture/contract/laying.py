"""How inputs lie in memory, where the traced code makes use of it: a program holds for inputs that lie so.

A trace has inputs without gaps. Only if the code makes use of it and an input has gaps or repeats, as a slice or an expanded
tensor does, it is traced again, with inputs that have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ...errors import TraceError

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


@dataclass(frozen=True)
class Laying:
    """Dims from the largest stride to the smallest; those of them behind which memory is left out; those that repeat.

    In what has gaps or repeats, dims of size one are not in the order: their strides do not matter.
    """

    order: tuple[int, ...]
    gaps: frozenset[int] = frozenset()
    repeats: frozenset[int] = frozenset()

    @property
    def is_dense(self) -> bool:
        return not (self.gaps or self.repeats)

    def empty(self, sizes: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor that lies so: room for one more behind a dim is a gap."""
        if self.is_dense:
            made = torch.empty([sizes[dim] for dim in self.order], dtype=dtype, device=device)
            in_place = list(self.order) == sorted(self.order)
            return made if in_place else made.permute([self.order.index(dim) for dim in range(len(sizes))])
        room = [
            sizes[dim] + int(before in self.gaps) for before, dim in zip((None, *self.order), self.order, strict=False)
        ]
        room.append(1 + (self.order[-1] in self.gaps if self.order else 0))
        made = torch.empty(room, dtype=dtype, device=device).select(-1, 0)
        for place, dim in enumerate(self.order):
            made = made.narrow(place, 0, sizes[dim])
        others = [dim for dim in range(len(sizes)) if dim not in self.order]
        made = made.permute([self.order.index(dim) for dim in sorted(self.order)])
        for dim in others:
            made = made.unsqueeze(dim)
        return made.expand([sizes[dim] if dim in self.repeats else -1 for dim in range(len(sizes))])


Layings: TypeAlias = Mapping[int, Laying]  # by the number of an input


class GapsError(TraceError):
    """How an input lies in memory matters, and it does not lie as that of the trace."""


def asks_for_order(function: Any) -> bool:
    """Returns if a function of torch says, or depends on, how its first argument lies in memory."""
    return function in _ORDER or function in _LAYING


def asked(function: Any, tensor: torch.Tensor, inputs: Mapping[int, int]) -> set[int]:
    """The inputs of which it matters then: `inputs` are their numbers, by the memory that they have in the trace."""
    number = inputs.get(storage_of(tensor))
    return set(inputs.values()) if function in _ORDER else set[int]() if number is None else {number}


def layings_of(numbers: Iterable[int], tensors: Sequence[torch.Tensor], gaps: bool, strides: bool) -> Layings:
    """How these inputs lie in memory, of which it matters; with `strides` these were asked for as numbers.

    Raises GapsError if one of them lies otherwise than in the trace, which has their `gaps` or not.
    """
    layings = {number: laying_of(tensors[number]) for number in sorted(numbers)}
    if (strides or not gaps) and not all(laying.is_dense for laying in layings.values()):
        raise GapsError("it makes use of how a tensor lies in memory, and is given one that has gaps")
    return layings


def is_asked_of_all(function: Any) -> bool:
    """Returns if what it says goes back to how any tensor lies that was read before: results lie as what they are made of."""
    return function in _ORDER


def strides_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """How a tensor of the state lies in memory, as far as its code is told."""
    return tuple(tensor.stride()) if tensor.layout is torch.strided else (str(tensor.layout),)


def lies_as(tensor: torch.Tensor, laying: Laying) -> bool:
    """Returns if a tensor lies in memory in this way."""
    if laying.is_dense:
        return tensor.layout is torch.strided and tensor.permute(laying.order).is_contiguous()
    return laying_of(tensor) == laying


def laying_of(tensor: torch.Tensor) -> Laying:
    """How a tensor lies in memory. What overlaps itself otherwise than by repeating counts as what has gaps."""
    dense = densely(tensor)
    if tensor.layout is not torch.strided or tensor.permute(dense.order).is_contiguous():
        return dense
    strides = [int(stride) for stride in tensor.stride()]
    repeats = frozenset(dim for dim, size in enumerate(tensor.shape) if size != 1 and not strides[dim])
    order = _sorted([dim for dim, size in enumerate(tensor.shape) if size != 1 and strides[dim]], strides)
    gaps, expected = set[int](), 1
    for dim in reversed(order):
        if strides[dim] != expected:
            gaps.add(dim)
        expected = strides[dim] * int(tensor.shape[dim])
    return Laying(order, frozenset(gaps), repeats)


def densely(tensor: torch.Tensor) -> Laying:
    """How a tensor lies in memory, as if it had no gaps and did not repeat."""
    strides = [int(stride) for stride in tensor.stride()] if tensor.layout is torch.strided else []
    in_place = any(stride == 0 for stride in strides) or not strides or tensor.is_contiguous()
    return Laying(tuple(range(tensor.dim())) if in_place else _sorted(range(tensor.dim()), strides))


def _sorted(dims: Iterable[int], strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(dims, key=lambda dim: -strides[dim]))


def storage_of(tensor: torch.Tensor) -> int:
    """Which memory a tensor has, real or not."""
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)
