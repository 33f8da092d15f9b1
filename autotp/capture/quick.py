"""The results of common operators on fake tensors, at once.

torch finds sizes and strides by running its definition of an operator on symbols, which takes a millisecond or more. For tensors
that lie in memory without gaps they are plain to see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from .at_once import AT_ONCE
from .at_once.lengths import Lengths
from .at_once.made import New, View

_ROOM = 1 << 40  # elements, of no memory: more than any tensor has


class Quick:
    """Finds what is plain to see of the tensors of one mode."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode, self.lengths = mode, Lengths(mode.shape_env)

    def __call__(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FakeTensor | None:
        """The result of an operator; None where torch has to find it."""
        how = AT_ONCE.get(function)
        first = args[0] if args else None
        first = first[0] if isinstance(first, (list, tuple)) and first else first
        if how is None or type(first) is not FakeTensor or first.constant is not None:
            return None
        try:
            made = how(self.lengths, *args, **kwargs)
        except TypeError:  # it is given what is not foreseen here
            return None
        return made if made is None or isinstance(made, FakeTensor) else self._tensor(made, first.fake_device)

    def _tensor(self, made: View | New, device: torch.device) -> FakeTensor:
        if isinstance(made, New):
            return FakeTensor(self.mode, self._new(made), device)
        with in_kernel_invocation_manager(self.mode):
            place = made.of.storage_offset() + made.further
            part = torch.as_strided(made.of, made.sizes, made.strides, place)
        return FakeTensor(self.mode, part, device)

    def _new(self, made: New) -> torch.Tensor:
        order = range(len(made.sizes)) if made.order is None else made.order
        sizes = [made.sizes[dim] for dim in order]
        strides = None if all(isinstance(size, int) for size in sizes) else self.lengths.dense(sizes)
        if strides is None:
            new = torch.empty(sizes, dtype=made.dtype, device="meta")
            strides = list(new.stride())
        else:
            # torch multiplies symbols for some time to find how much memory that is; nobody who is traced may ask.
            new = torch.empty(_ROOM, dtype=made.dtype, device="meta")
        of_dims = dict(zip(order, strides, strict=True))
        return torch.as_strided(new, made.sizes, [of_dims[dim] for dim in range(len(sizes))])
