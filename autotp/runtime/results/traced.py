"""Cut logits while `torch.compile` traces: it follows plain objects, and no class of tensors that is not torch's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.comptime import ComptimeContext, comptime
from torch._dynamo.exc import SkipFrame
from torch.nn import functional
from torch.utils import _pytree as pytree

from .logits import (
    FUNCTIONS,
    METHODS,
    QUOTIENTS,
    Head,
    cross_entropy_of_slices,
    keeps_rows,
    pointwise_of_slices,
    takes_rows,
)

_found = threading.local()

_VIEWS = ("view", "reshape", "flatten", "unsqueeze", "squeeze")
# What Python looks up in a class, and so never asks `__getattr__` for.
_OF_THE_WHOLE = (
    "__len__ __iter__ __setitem__ __bool__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __matmul__ __rmatmul__ __pow__ __rpow__ "
    "__rsub__ __rtruediv__ __floordiv__ __mod__ __invert__ __and__ __or__ __iadd__ __isub__ __imul__ __itruediv__"
).split()


class TracedLogits:
    """Logits of which this rank holds a slice of the last dim, in the place of the tensor that they are.

    Views, pointwise functions and the cross-entropy work on the slice. For everything else that tensors do they are gathered,
    once.
    """

    __hash__ = object.__hash__

    def __init__(self, local: torch.Tensor, head: Head) -> None:
        self.local, self.head = local, head
        self._whole: torch.Tensor | None = None

    def whole(self) -> torch.Tensor:
        """Whole logits with their history, gathered at the first use; all ranks must come here together."""
        if self._whole is None:
            self._whole = self.head.gathered(self.local)
        return self._whole

    def settled(self) -> torch.Tensor:
        """As a model returns them: a distributed tensor if they are to be one or a loss has read them cut; whole otherwise, and
        for a loss within a graph."""
        read_cut = self.head.lost and not self.is_whole and not torch.compiler.is_dynamo_compiling()
        if self.head.kept and self._whole is not None:
            return self.head.cut_again(self._whole)
        return self.head.distributed(self.local) if self.head.kept or read_cut else self.whole()

    @property
    def is_whole(self) -> bool:
        """Whether somebody has needed them whole."""
        return self._whole is not None

    @property
    def shape(self) -> torch.Size:
        """That of the whole."""
        return torch.Size((*self.local.shape[:-1], self.head.layout.size))

    @property
    def dtype(self) -> torch.dtype:
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        return self.local.device

    @property
    def ndim(self) -> int:
        return self.local.dim()

    @property
    def requires_grad(self) -> bool:
        return self.local.requires_grad

    def dim(self) -> int:
        return self.local.dim()

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __getitem__(self, index: Any) -> Any:
        if self._whole is not None or not takes_rows(index, self.local.dim()):
            return self.whole()[index]
        return TracedLogits(self.local[index], self.head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole(), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        logits = [value for value in (*args, *kwargs.values()) if isinstance(value, TracedLogits)]
        if len(logits) == 1 and not logits[0].is_whole:
            result: Any = None
            if func is functional.cross_entropy and logits[0] is (args[0] if args else kwargs.get("input")):
                others = {name: value for name, value in kwargs.items() if name != "input"}
                result = cross_entropy_of_slices(logits[0].local, logits[0].head, *args[1:], **others)
            elif func in FUNCTIONS:
                result = logits[0]._pointwise(func, args, kwargs, func in QUOTIENTS)
            if result is not None:
                return result
        args, kwargs = pytree.tree_map_only(TracedLogits, TracedLogits.whole, (args, kwargs))
        return func(*args, **kwargs)

    def _pointwise(self, func: Callable[..., Any], args: Any, kwargs: Any, divides: bool) -> TracedLogits | None:
        """A pointwise function of the slice; None with other logits, or where the whole is there already."""
        others = [value for value in (*args, *kwargs.values()) if isinstance(value, TracedLogits) and value is not self]
        if others or self.is_whole:
            return None
        local = pointwise_of_slices(func, self, self.local, self.head, args, kwargs, divides=divides)
        return None if local is None else TracedLogits(local, self.head)


def _pointwise(name: str) -> Callable[..., Any]:
    divides = getattr(torch.Tensor, name) in QUOTIENTS

    def method(self: TracedLogits, *args: Any, **kwargs: Any) -> Any:
        result = self._pointwise(
            lambda value, *args, **kwargs: getattr(value, name)(*args, **kwargs), (self, *args), kwargs, divides
        )
        return getattr(self.whole(), name)(*args, **kwargs) if result is None else result

    return method


def _view(name: str) -> Callable[..., Any]:
    def method(self: TracedLogits, *args: Any, **kwargs: Any) -> Any:
        if self._whole is None:
            shape = getattr(torch.empty(self.shape, device="meta"), name)(*args, **kwargs).shape
            if keeps_rows(shape, self.shape):
                return TracedLogits(self.local.reshape(*shape[:-1], self.local.shape[-1]), self.head)
        return getattr(self.whole(), name)(*args, **kwargs)

    return method


def _of_the_whole(name: str) -> Callable[..., Any]:
    def method(self: TracedLogits, *args: Any) -> Any:
        return getattr(self.whole(), name)(*args)

    return method


for _names, _make in ((METHODS, _pointwise), (_VIEWS, _view), (_OF_THE_WHOLE, _of_the_whole)):
    for _name in _names:
        setattr(TracedLogits, _name, _make(_name))


def closed(value: Any) -> Any:
    """Whole logits for cut ones; anything else as it is."""
    return value.whole() if isinstance(value, TracedLogits) else value


def skip_outermost() -> None:
    """Let dynamo, which traces this, leave the frame that called it alone, if nothing that it traces has called that."""
    comptime(_skip_outermost)


def may_break() -> bool:
    """Returns if dynamo, which traces this, may end its graph here: not with `fullgraph=True`."""
    comptime(_ask)
    return _answer()


def _skip_outermost(context: ComptimeContext) -> None:
    caller = _transaction(context).parent
    if caller is not None and caller.parent is None:
        raise SkipFrame("what a model returns is made whole outside of the graph")


def _ask(context: ComptimeContext) -> None:
    transaction = _transaction(context)
    _found.may_break = not (transaction.one_graph or transaction.error_on_graph_break)


def _transaction(context: ComptimeContext) -> Any:
    return context._ComptimeContext__tx  # type: ignore[attr-defined]


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _answer() -> bool:
    """What was found just before."""
    found: bool = _found.may_break
    return found
