"""Cut parameters, their gradients and what is made of them: the dense tensor when read, this rank's part in memory.

Sizes are the whole's. What is done element by element happens to the part, a sum over everything is one collective, and
every other function gets the whole, gathered for it: so all of them compute what they do on the dense model, on every rank.
Programs, which know how a parameter is cut, work on the part itself inside `parts_only()`, at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._foreach_utils import _foreach_supported_types

from ...errors import UsageError
from ..collectives.added import at_once
from .attributes import after_backward, of_cut
from .functions import dispatched
from .memories import Memory
from .origin import IsCut, Origin, parts_only
from .unasked import give_wholes
from .views import as_class

MSG_OUTSIDE = (
    "{what} of {name} outside of its module's forward would lose its gradient, since FSDP has cut it too; read it in forward, or"
    " inside torch.no_grad()"
)


class _Same(torch.autograd.Function):
    """A tensor with the memory and the history of another that is no view of it: a view cannot be detached in place."""

    @staticmethod
    def forward(ctx, part):  # type: ignore[no-untyped-def]
        return part.detach()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient


class CutTensor(IsCut, torch.Tensor):  # type: ignore[misc]
    """A tensor of which this rank holds a part; see the top of this file."""

    @staticmethod
    def of(part: torch.Tensor, origin: Origin, memory: Memory | None = None) -> CutTensor:
        """The tensor of which a plain one, whose memory and history it shares, is this rank's part."""
        with parts_only():
            made: Any = part.as_subclass(CutTensor) if part.grad_fn is None else _Same.apply(part)
        return CutTensor.named(made, origin, memory)

    @staticmethod
    def named(made: Any, origin: Origin, memory: Memory | None = None) -> CutTensor:
        """The same of a plain tensor that nobody else has: it is the cut one itself from now on."""
        made.__class__ = CutTensor
        made.__dict__.update(autotp_origin=origin, autotp_memory=memory or Memory())
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, types, args, kwargs or {})

    def as_subclass(self, cls: Any) -> Any:
        """Raises UsageError for a class that is not torch's own, since torch gives it this rank's part without asking."""
        return as_class(self, cls) if torch._C._is_torch_function_enabled() else super().as_subclass(cls)

    def __deepcopy__(self, memo: dict[Any, Any]) -> CutTensor:
        is_parameter = "_is_param" in self.__dict__
        key = (
            CutTensor,
            id(self) if is_parameter else id(self.autotp_memory),
        )  # torch copies a parameter's memory for itself
        with parts_only():
            first, gradient = memo.get(key), self.grad
            if first is None or first.dtype is not self.dtype or first.is_conj() != self.is_conj():
                copied = CutTensor.of(self.detach().clone(), self.autotp_origin)
            else:
                copied = first.same_memory()
            copied.requires_grad_(self.requires_grad)
        memo.setdefault(key, copied)
        memo[id(self)] = copied
        if is_parameter:
            copied.__dict__["_is_param"] = True  # torch copies a parameter without its gradient
        elif gradient is not None:
            copied.grad = CutTensor.of(gradient.clone(), self.autotp_origin)
        return copied

    def wrap(self, held: torch.Tensor, memory: Memory | None = None) -> CutTensor:
        return CutTensor.of(held, self.autotp_origin, memory)

    def claim(self, made: Any, memory: Memory | None = None) -> CutTensor:
        return (
            CutTensor.named(made, self.autotp_origin, memory) if type(made) is torch.Tensor else self.wrap(made, memory)
        )

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        origin = self.autotp_origin
        recorded = torch.is_grad_enabled() and whole.requires_grad and whole.shape == origin.shape
        return origin.part_of(whole) if recorded else origin.take(whole)

    def local(self) -> torch.Tensor:
        with parts_only():
            own = self.as_subclass(torch.Tensor)
        at_once(own.grad_fn)
        return self.autotp_memory.counting(own) if torch._C._is_torch_function_enabled() else own

    def whole(self, what: str = ".whole()") -> torch.Tensor:
        return self.autotp_origin.whole(self.local(), what)

    def starts(self) -> Sequence[int]:
        return [0] * len(self.autotp_origin.layouts)

    def padding_here(self) -> list[tuple[int, torch.Tensor]]:
        return self.autotp_origin.padding_on(self.local().device)


class CutShard(IsCut, DTensor):  # type: ignore[misc]
    """The same where data-parallel ranks have cut the part further: a distributed tensor on their mesh, as FSDP leaves it."""

    @staticmethod
    def of(shard: DTensor, origin: Origin, memory: Memory | None = None) -> CutShard:
        """The tensor of which a distributed one, whose memory it shares, is the tensor-parallel rank's part."""
        made = CutShard(shard._local_tensor, shard._spec, requires_grad=False)
        made.__dict__.update(autotp_origin=origin, autotp_memory=memory or Memory())
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, types, args, kwargs or {})

    def wrap(self, held: Any, memory: Memory | None = None) -> CutShard:
        return CutShard.of(held, self.autotp_origin, memory)

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        part, fewer = self.autotp_origin.take(whole), len(self.autotp_origin.layouts) - whole.dim()

        def along(placement: Placement) -> bool:
            dim = placement.dim - fewer if placement.is_shard() else -1  # type: ignore[attr-defined]
            return dim >= 0 and whole.shape[dim] == self.autotp_origin.shape[dim + fewer]

        placements = [placement if along(placement) else Replicate() for placement in self._spec.placements]
        return distribute_tensor(part, self._spec.mesh, placements, src_data_rank=None)

    def local(self) -> torch.Tensor:
        return self._local_tensor

    def whole(self, what: str = ".whole()") -> torch.Tensor:
        with parts_only():
            if self.requires_grad and torch.is_grad_enabled():
                raise UsageError(MSG_OUTSIDE.format(what=what, name=self.autotp_origin.name))
        with parts_only(), torch.no_grad():
            return self.autotp_origin.whole(self.full_tensor(), what)

    def starts(self) -> Sequence[int]:
        return compute_local_shape_and_global_offset(self._spec.shape, self._spec.mesh, self._spec.placements)[1]

    def sum_over_shards(self, value: torch.Tensor, op: str) -> torch.Tensor:
        for dim, placement in enumerate(self._spec.placements):
            if placement.is_shard():
                value = all_reduce(value, op, (self._spec.mesh, dim))
        return value


# torch takes a list of tensors at once if it knows all of their classes.
_foreach_supported_types.append(CutTensor)


def as_cut(parameter: torch.Tensor, origin: Origin) -> None:
    """Let a parameter that holds a part be the cut one. Whoever has it keeps it."""
    give_wholes()
    parameter.__class__ = CutShard if isinstance(parameter, DTensor) else CutTensor
    parameter.__dict__.update(autotp_origin=origin, autotp_memory=Memory(), _is_param=True)


def cut_in_place(parameter: nn.Parameter, origin: Origin) -> None:
    """Make a whole parameter the cut one. Whoever has it keeps it; its hooks are given gradients that are cut too."""
    gradient, parameter.grad = parameter.grad, None
    with torch.inference_mode(parameter.is_inference()):  # which is a tensor's own, and stays
        part = origin.take(parameter.detach()).clone()
        # Autograd forgets the node that graphs of the whole may keep, with its sizes, where the type is another one for once.
        # Modes that choose types have no say in it.
        with torch._C.DisableTorchFunction():
            parameter.data = part.new_empty(0, dtype=torch.float32 if part.dtype is torch.float64 else torch.float64)
            parameter.data = part
    as_cut(parameter, origin)
    hooks: Any = parameter
    for number, hook in (hooks._backward_hooks or {}).items():
        hooks._backward_hooks[number] = of_cut(parameter, hook)
    for number, hook in (hooks._post_accumulate_grad_hooks or {}).items():
        hooks._post_accumulate_grad_hooks[number] = after_backward(hook)
    if gradient is not None:
        parameter.grad = gradient
