"""Slices in the objects of a call that runs whole: nobody may take one for a whole value, and most calls look at none of them.
And objects of which the values are whole, since somebody else has put them there."""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.opaque import Widths, objects_in, tensors_of
from ..capture.state import slots_of
from ..errors import TraceError

# What may be asked of a slice: what it says of the whole as well. Sizes only where it is known which they are.
_SIZES = frozenset(
    {torch.Tensor.shape.__get__, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.__len__}  # type: ignore[attr-defined]
)
_ALIKE = frozenset(
    {
        getattr(torch.Tensor, name).__get__
        if hasattr(getattr(torch.Tensor, name), "__get__")
        else getattr(torch.Tensor, name)
        for name in ("dtype", "device", "layout", "ndim")
    }
    | {torch.Tensor.dim, torch.Tensor.is_floating_point}
)


class Slice(torch.Tensor):
    """Stands for a slice that an object holds. It has the sizes of the whole, where they are `known`."""

    held: torch.Tensor
    known: bool
    aside: Aside

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = next(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        if func in _ALIKE or (func in _SIZES and own.known):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise own.aside.error()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise next(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, cls)).aside.error()


class Aside:
    """The slices that stand-ins have the places of, while a call runs whole; `reason` says why it does."""

    def __init__(self, reason: str, whole_of: Callable[[tuple[int, ...]], tuple[int, ...] | None]) -> None:
        self.reason, self.whole_of = reason, whole_of
        self.read = False
        self._standing: dict[int, Slice] = {}

    def error(self) -> TraceError:
        """The error of who reads a slice, even if its own Python catches it."""
        self.read = True
        return TraceError(f"{self.reason}; its objects hold slices")

    def stand_in(self, value: torch.Tensor) -> Slice:
        """What stands for a slice: one object for one tensor, wherever it is."""
        if id(value) not in self._standing:
            own = tuple(value.shape)
            whole = self.whole_of(own)
            standing = torch.Tensor._make_wrapper_subclass(Slice, whole or own, dtype=value.dtype, device=value.device)
            standing.__dict__.update(held=value, known=whole is not None, aside=self)
            self._standing[id(value)] = standing
        return self._standing[id(value)]


@contextmanager
def set_aside(handles: Sequence[Any], is_slice: Callable[[torch.Tensor], bool], aside: Aside) -> Iterator[None]:
    """Inside, stand-ins have the places of the slices in objects, and any use of one is an error.

    Raises TraceError where one was used, or is at a place where nothing can be put.
    """
    _replace(
        handles, lambda value: not isinstance(value, (Slice, nn.Parameter)) and is_slice(value), aside.stand_in, aside
    )
    try:
        yield
    except Exception as error:
        if aside.read and not isinstance(error, TraceError):
            raise aside.error() from error
        raise
    finally:
        _replace(
            handles, lambda value: isinstance(value, Slice) and value.aside is aside, lambda value: value.held, aside
        )
    if aside.read:
        raise aside.error()


def check_given(result: Any, aside: Aside) -> Any:
    """What a call gave. Raises TraceError if a slice is in it."""
    if any(isinstance(leaf, Slice) for leaf in pytree.tree_leaves(result)):
        raise aside.error()
    return result


def _replace(
    handles: Sequence[Any],
    wanted: Callable[[Any], bool],
    other: Callable[[Any], torch.Tensor],
    aside: Aside,
) -> None:
    for holder in list(objects_in(list(handles))):
        for put, value in list(_places(holder)):
            if isinstance(value, torch.Tensor) and wanted(value):
                if put is None:
                    raise aside.error()
                put(other(value))


def _places(holder: Any) -> Iterator[tuple[Callable[[Any], None] | None, Any]]:
    """What an object holds, and what puts something else in the place of each, None where nothing can."""
    if isinstance(holder, torch.Tensor):
        return
    if isinstance(holder, dict):
        yield from ((functools.partial(dict.__setitem__, holder, key), value) for key, value in dict.items(holder))
    elif isinstance(holder, (list, collections.deque)):
        put: Any = list.__setitem__ if isinstance(holder, list) else collections.deque.__setitem__
        yield from ((functools.partial(put, holder, i), value) for i, value in enumerate(holder))
    elif isinstance(holder, (tuple, set, frozenset)):
        yield from ((None, value) for value in holder)
    own = getattr(holder, "__dict__", {})
    yield from ((functools.partial(own.__setitem__, name), value) for name, value in own.items())
    for name in slots_of(type(holder)):
        if hasattr(holder, name):
            yield functools.partial(object.__setattr__, holder, name), getattr(holder, name)


# Objects that were looked at, by identity, and whether somebody else had filled them.
_looked_at: dict[int, tuple[weakref.ref[Any], bool]] = {}


def is_filled(handle: Any, widths: Widths) -> bool:
    """Returns if an object held whole values, and no slices, when a program was first to get it: no program has filled it."""
    known = _looked_at.get(id(handle))
    if known is not None and known[0]() is handle:
        return known[1]
    held = [tuple(t.shape) for t in tensors_of(handle) if t.numel() and not getattr(t, "autotp_is_whole", False)]
    filled = any(map(widths.is_whole, held)) and not any(map(widths.is_slice, held))
    with suppress(TypeError):  # what cannot be referred to weakly is looked at again
        key = id(handle)
        _looked_at[key] = weakref.ref(handle, lambda gone: _forget(key, gone)), filled
    return filled


def _forget(key: int, gone: Any) -> None:
    if key in _looked_at and _looked_at[key][0] is gone:
        del _looked_at[key]
