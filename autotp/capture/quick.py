"""The results of common operators on fake tensors, at once.

torch finds sizes and strides by running its definition of an operator on symbols, which takes a millisecond or more. For tensors
that lie in memory without gaps they are plain to see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        self.mark: Callable[[torch.Tensor], None] = (  # that there are no data
            torch._C._set_warn_deprecated_on_mutable_data_ptr
            if mode._allow_unsafe_data_ptr_access
            else torch._C._set_throw_on_mutable_data_ptr
        )
        self.states: dict[torch.device, dict[str, Any]] = {}  # attributes of a new tensor on each device

    def __call__(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operator, or its results; None where torch has to find them."""
        how = AT_ONCE.get(function)
        first = args[0] if args else None
        first = first[0] if isinstance(first, (list, tuple)) and first else first
        if how is None or type(first) is not FakeTensor or first.constant is not None:
            return None
        try:
            made = how(self.lengths, *args, **kwargs)
        except TypeError:  # it is given what is not foreseen here
            return None
        if isinstance(made, tuple):
            return tuple(self._tensor(each, first.fake_device) for each in made)
        return made if made is None or isinstance(made, FakeTensor) else self._tensor(made, first.fake_device)

    def _tensor(self, made: View | New, device: torch.device) -> FakeTensor:
        if isinstance(made, New):
            return self._fake(self._new(made), device)
        with in_kernel_invocation_manager(self.mode):
            place = made.of.storage_offset() + made.further
            part = torch.as_strided(made.of, made.sizes, made.strides, place)
        return self._fake(part, device)

    def _fake(self, plain: torch.Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor, as its class makes one, which sets attributes one by one: whoever observes a trace is told of each."""
        if device not in self.states:
            first = FakeTensor(self.mode, plain, device)
            self.states[device] = dict(vars(first))
            return first
        new = torch.Tensor._make_subclass(
            FakeTensor, plain, plain.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        self.mark(new)
        vars(new).update(self.states[device])
        return new

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
