"""A tensor of which this rank holds a part, in the place of the whole: whatever is asked of it is asked of the whole.

How it is cut, what is computed on parts, and what a model returns in its place: all that its policy says.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..collectives.single import is_recorded
from ..cut.origin import IsCut
from ..cut.views import WholeView

T = torch.Tensor
# What asks for the memory of a tensor, which one that stands for a whole does not have.
_OF_MEMORY = frozenset(
    {T.numpy, T.__array__, T.tolist, T.data_ptr, T.untyped_storage, T.storage, T.data.__get__}  # type: ignore[attr-defined]
)


class Policy:
    """How one kind of cut tensor is used. A method that has nothing to say returns NotImplemented: then the whole is used."""

    taken_cut = False  # whether units may be given it as it is

    def gathered(self, local: torch.Tensor) -> torch.Tensor:
        """The whole of a part, by collectives that all ranks reach together."""
        raise NotImplementedError

    def own_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """This rank's part of a gradient of the whole."""
        raise NotImplementedError

    def on_parts(self, cut: Sequence[CutResult], func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of a function of torch's for these cut tensors among its arguments."""
        return NotImplemented

    def on_part(self, func: Any, args: Any) -> Any:
        """The result of an operator below autograd whose first argument is cut."""
        return NotImplemented

    def written(self, value: CutResult) -> None:
        """Somebody has written into the whole."""

    def settled(self, value: CutResult) -> torch.Tensor:
        """What a model returns in its place."""
        return closed(value)


class CutResult(torch.Tensor):
    """A value of which this rank holds `local`. It has the shape of the whole, and the history of what it stands for."""

    local: torch.Tensor
    policy: Policy
    _whole: torch.Tensor | None

    @staticmethod
    def of(local: torch.Tensor, shape: Sequence[int], policy: Policy) -> CutResult:
        """One without history, of a whole of this shape."""
        made: CutResult = torch.Tensor._make_wrapper_subclass(CutResult, shape, dtype=local.dtype, device=local.device)
        made.__dict__.update(local=local, policy=policy, _whole=None)
        return made

    @property
    def is_whole(self) -> bool:
        """Whether somebody has needed it whole."""
        return self._whole is not None

    def whole(self) -> torch.Tensor:
        """The whole without history, gathered at the first use; all ranks must come here together."""
        if self._whole is None:
            with torch.no_grad():
                self._whole = self.policy.gathered(self.local)
        return self._whole

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        kind = type(self.policy).__name__
        return f"CutResult({tuple(self.shape)}, local {tuple(self.local.shape)}, {self.dtype}, {kind})"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(closed(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return closed(self).__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, (IsCut, WholeView)) for kind in types):
            return NotImplemented  # a cut parameter's own function makes it whole first
        cut = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, CutResult)]
        with torch._C.DisableTorchFunctionSubclass():
            if func in _OF_MEMORY:
                return func(*pytree.tree_map(closed, args), **kwargs)
            for policy in dict.fromkeys(each.policy for each in cut):
                result = policy.on_parts(cut, func, args, kwargs)
                if result is not NotImplemented:
                    return result
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        first = args[0] if args else None
        if isinstance(first, CutResult):
            result = first.policy.on_part(func, args)
            if result is not NotImplemented:
                return result
        given = pytree.tree_map_only(CutResult, CutResult.whole, (args, kwargs or {}))
        result = func(*given[0], **given[1])
        for arg in args:
            if func._schema.is_mutable and isinstance(arg, CutResult) and arg._whole is result:
                arg.policy.written(arg)
                return arg
        return result


class _StandFor(torch.autograd.Function):
    """Forward, the value that a part is of; backward, this rank's part of its gradient."""

    @staticmethod
    def forward(ctx, local, shape, policy):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.policy = policy
        return CutResult.of(local.detach(), shape, policy)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return None if gradient is None else ctx.policy.own_gradient(gradient), None, None


class _Close(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cut):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        return cut.whole().detach()  # a tensor of its own, whose history nobody else's replaces

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient


def stand_for(local: torch.Tensor, shape: Sequence[int], policy: Policy) -> CutResult:
    """The value of this shape that a part is of, with a history if the part has one."""
    return (_StandFor.apply if is_recorded(local) else CutResult.of)(local, shape, policy)


def closed(value: torch.Tensor) -> torch.Tensor:
    """A whole value for a cut one, with its history; any other tensor as it is."""
    if not isinstance(value, CutResult):
        return value
    return _Close.apply(value) if is_recorded(value) else value.whole()
