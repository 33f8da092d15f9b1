"""Memory that a program writes into: nothing else that it reads may lie there, since a trace takes all memory for separate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor


def range_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses at which a tensor's numbers begin and end, in bytes; none where it has no memory that is known."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel():
        return 0, 0
    begin = tensor.data_ptr()
    span = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return (begin, begin + span * tensor.element_size()) if begin else (0, 0)


@dataclass(frozen=True, eq=False)
class Memory:
    """The tensors of a unit's state, and what a program writes into: which of these, and which inputs, by number."""

    state: tuple[torch.Tensor, ...]
    written: frozenset[int]
    into: tuple[int, ...]

    def is_apart(self, given: Sequence[torch.Tensor]) -> bool:
        """Returns if nothing else of the state, or of the inputs that are given, may lie where something is written. Where a
        call is not known, none are given."""
        writes = [*self.written, *(len(self.state) + number for number in self.into if number < len(given))]
        if not writes:
            return True
        with torch._C.DisableTorchFunctionSubclass():
            ranges = [range_of(tensor) for tensor in (*self.state, *given)]
        for own in writes:
            begin, end = ranges[own]
            if any(first < end and begin < last for other, (first, last) in enumerate(ranges) if other != own):
                return False
        return True
