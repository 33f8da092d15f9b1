"""Opaque objects of a unit's call (a KV cache): what stands for them while tracing, how they are copied and read again."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ..errors import TraceError
from .contract.frames import is_observed
from .contract.numbers import STANDS_FOR
from .state import CONSTANTS, parts_of

# The way from an object to something in it: attributes `(".", name)` and calls `("()", (args, kwargs))`. At its end may stand
# a question: whether there is an attribute `("has", name)`, or of which class it is `("type", "")`.
Path: TypeAlias = tuple[tuple[str, Any], ...]


class Position:
    """Stands for a unit's place among its siblings while tracing. Passed to an opaque method it stays a variable;
    used in any other way it is the number it stands for, and `used` says that the trace holds for that number only."""

    def __init__(self, value: int, number: int) -> None:
        self.value, self.number, self.used = value, number, False

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int if is_observed(sys._getframe(1)) else Position

    def __index__(self) -> int:
        self.used = True
        return self.value

    def __getattr__(self, name: str) -> Any:
        if not hasattr(int, name):
            raise AttributeError(f"'int' object has no attribute {name!r}")
        return getattr(self.__index__(), name)

    def __copy__(self) -> Position:
        return self

    def __deepcopy__(self, memo: Any) -> Position:
        return self

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return int, (self.__index__(),)


STANDS_FOR[Position] = 0


def _delegate(name: str) -> Any:
    def method(self: Position, *others: Any) -> Any:
        return getattr(operator_index(self), name)(*map(operator_value, others))

    return method


def operator_index(value: Position) -> int:
    return value.__index__()


def operator_value(value: Any) -> Any:
    return value.__index__() if isinstance(value, Position) else value


for _name in (
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __bool__ __int__ __float__ __str__ __repr__ __format__ __neg__ __abs__ "
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ "
    "__rmod__ __pow__ __rpow__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __lshift__ __rlshift__ __rshift__ __rrshift__ "
    "__divmod__ __rdivmod__ __pos__ __invert__ __round__ __trunc__ __floor__ __ceil__ __dir__ __sizeof__"
).split():
    setattr(Position, _name, _delegate(_name))


def follow(value: Any, path: Path, positions: tuple[int, ...]) -> Any:
    """Read an attribute, or call a method, of an object along a recorded path."""
    for kind, step in path:
        if kind == ".":
            value = getattr(value, step)
        elif kind == "has":
            value = hasattr(value, step)
        elif kind == "type":
            value = type(value)
        else:
            args, kwargs = with_positions(step, positions)
            value = value(*args, **kwargs)
    return value


def with_positions(tree: Any, positions: tuple[int, ...] | None = None) -> Any:
    """Arguments with positions replaced by numbers: the given ones, or those they stood for while tracing."""

    def value(leaf: Any) -> Any:
        if isinstance(leaf, Position):
            return leaf.value if positions is None else positions[leaf.number]
        return leaf

    return pytree.tree_map(value, tree, is_leaf=lambda leaf: isinstance(leaf, Position))


def path_name(path: Path) -> str:
    """A path as text that is the same in every trace: a position stands in it by its number."""

    def named(leaf: Any) -> Any:
        return f"position {leaf.number}" if isinstance(leaf, Position) else leaf

    return repr(pytree.tree_map(named, path, is_leaf=lambda leaf: isinstance(leaf, Position)))


def tensors_of(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Every tensor in an object, its attributes and containers."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (*CONSTANTS, type)):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    for part in parts_of(value):
        yield from tensors_of(part, seen)


def objects_in(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """An object and everything in its attributes and containers."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    yield value
    for part in parts_of(value):
        yield from objects_in(part, seen)


def copy_opaque(
    tree: Any,
    tensor: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    memo: dict[int, Any] | None = None,
) -> Any:
    """Arguments of a call with every Python object in them copied, so that the call can change it; tensors are replaced.

    Raises TraceError for an object that cannot be copied.
    """
    known: dict[int, Any] = {} if memo is None else memo

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return tensor(leaf)
        if isinstance(leaf, (*CONSTANTS, type)) or callable(leaf):
            return leaf
        for part in tensors_of(leaf):
            if id(part) not in known:
                known[id(part)] = tensor(part)
        try:
            return copy.deepcopy(leaf, known)
        except Exception as error:
            raise TraceError(f"an argument of type {type(leaf).__name__} can be neither traced nor copied") from error

    return pytree.tree_map(copied, tree, is_leaf=lambda value: not isinstance(value, (list, tuple, dict)))


class Widths:
    """How wide the whole of a value is of which an opaque object holds this rank's slice.

    A unit is traced with whole values while the object in its call holds slices already (a cache in use). What programs
    passed to such objects says how they belong together: by all sizes but the batch's and, since what is kept may be
    longer or shorter than what was given, those of the last dims that are not themselves cut. A unit that has passed such a
    slice itself knows best; otherwise it learns from `others`.
    """

    def __init__(self, others: Widths | None = None) -> None:
        self._others = others
        self._known: dict[tuple[int | None, ...], set[tuple[int | None, ...]]] = {}

    def note(self, local: tuple[int, ...], whole: tuple[int, ...]) -> None:
        """An object was given a slice of shape `local` of a value of shape `whole`."""
        if self._others is not None:
            self._others.note(local, whole)
        cut = {dim - len(local) for dim in range(len(local)) if local[dim] != whole[dim]}
        masks = {frozenset(mask - cut) for mask in _MASKS} if cut else _MASKS
        for mask in masks:
            self._known.setdefault(_masked(local, mask), set()).add(_masked(whole, mask))

    def said(self) -> str:
        """All that is known, as text."""
        own = sorted((str(slices), sorted(map(str, wholes))) for slices, wholes in self._known.items())
        return f"{own} {self._others.said() if self._others is not None else ''}"

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the whole for a slice that an object holds. Raises TraceError if it may be one of several."""
        keys = [_masked(shape, mask) for mask in (frozenset[int](), *_MASKS)]
        found = next((self._known[key] for key in keys if key in self._known and any(key)), {()})
        if found == {()} and self._others is not None:
            return self._others.whole(shape)
        if len(found) > 1:
            raise TraceError(
                f"a value of shape {list(shape)} in an opaque object may be a slice of {sorted(map(str, found))}"
            )
        (sizes,) = found
        return tuple(own if size is None else size for own, size in zip(shape, sizes, strict=True)) if sizes else shape

    def whole_or_none(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The same, None if it may be one of several."""
        try:
            return self.whole(shape)
        except TraceError:
            return None

    def is_slice_of(self, shape: tuple[int, ...]) -> bool:
        """Returns if a value of this shape may be the whole of what an object holds a slice of."""
        if self._others is not None and self._others.is_slice_of(shape):
            return True
        keys = {_masked(shape, mask) for mask in (frozenset[int](), *_MASKS)}
        return any(keys & wholes and slices not in wholes for slices, wholes in self._known.items())

    def is_whole(self, shape: tuple[int, ...]) -> bool:
        """Returns if a value that an object holds is like wholes of which programs pass slices, and like none of the slices."""
        if self._others is not None:
            return self._others.is_whole(shape)
        keys = {_masked(shape, mask) for mask in (frozenset[int](), *_MASKS)}
        return not self.is_slice(shape) and any(keys & wholes for wholes in self._known.values())

    def is_slice(self, shape: tuple[int, ...]) -> bool:
        """Returns if a value that an object holds is like slices that programs pass."""
        if self._others is not None:
            return self._others.is_slice(shape)
        keys = {_masked(shape, mask) for mask in (frozenset[int](), *_MASKS)}
        return any(self._known.get(key, {key}) != {key} for key in keys)


# Dims, counted from the end, whose sizes may differ between what an object is given and what it holds.
_MASKS = (frozenset({-2}), frozenset({-1}), frozenset({-2, -1}))


def _masked(shape: tuple[int, ...], mask: frozenset[int]) -> tuple[int | None, ...]:
    """The sizes that count, of a tensor that may be a fake one itself."""
    sizes = (size if isinstance(size, int) else int(size.node.hint) for size in shape)
    return tuple(None if i == 0 or i - len(shape) in mask else size for i, size in enumerate(sizes))
