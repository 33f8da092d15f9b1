"""A stand-in: it takes the place of an object of the call, or of a part of it, while a unit is traced.

What it is asked goes to the handles of the trace, which guard the answer. What nothing can guard ends the trace. There is a
class of stand-ins for each class of objects: it has the special methods of that class and no others, so that Python, and code
that looks for them, finds what it would find.
"""

from __future__ import annotations

import functools
import sys
from collections import abc
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard

from ..errors import TraceError
from .contract.frames import is_observed
from .contract.numbers import TELLS
from .opaque import Path
from .reads import HandleRead


class Owner(Protocol):
    """The handles of a trace."""

    def told(self, kind: type) -> None:
        """The traced code gets a class into its hands."""

    def attribute(self, handle: int, path: Path, value: Any, name: str) -> Any:
        """An attribute of an object."""

    def constant(self, read: HandleRead, value: Any, exact: bool = False) -> Any:
        """A constant that is read."""

    def invoke(self, handle: int, path: Path, bound: Any, args: Any, kwargs: Any) -> Any:
        """Call a method."""

    def refuse(self, problem: str) -> TraceError:
        """The error for what has no program."""


class StandIn:
    """Takes an object's place while tracing; says it is of the object's class."""

    __slots__ = ("_held",)
    _held: tuple[Owner, int, Path, Any]

    def __getattribute__(self, name: str) -> Any:
        handles, handle, path, value = held(self)
        if name == "__class__":
            return tell_class(self) if is_observed(sys._getframe(1)) else type(value)
        if name in _OF_NOBODY and not hasattr(type(value), name):
            raise AttributeError(name)
        return handles.attribute(handle, path, value, name)

    def __bool__(self) -> bool:
        kind = type(held(self)[3])
        if hasattr(kind, "__bool__"):
            return bool(_asked(self, "__bool__"))
        return bool(_asked(self, "__len__") != 0) if hasattr(kind, "__len__") else True

    def __setattr__(self, name: str, value: Any) -> None:
        _asked(self, "__setattr__", name, value)


_KEPT = vars(StandIn)["_held"]
# What torch's own code looks for in everything.
_OF_NOBODY = frozenset({"__torch_function__", "__torch_dispatch__", "__sympy__", "__tensor_flatten__"})


def held(value: StandIn) -> tuple[Owner, int, Path, Any]:
    """The handles, the handle, the path in it and the copy of what a stand-in stands for."""
    found: tuple[Owner, int, Path, Any] = _KEPT.__get__(value)
    return found


def tell_class(value: StandIn) -> type:
    """The class of an object, which the traced code gets into its hands, and may ask for all that it has."""
    handles, _, _, real = held(value)
    handles.told(type(real))
    return type(real)


setattr(StandIn, TELLS, tell_class)


def _asked(value: StandIn, name: str, *given: Any) -> Any:
    """What a special method of the object gives."""
    handles, handle, path, real = held(value)
    return handles.attribute(handle, path, real, name)(*given)


def _length(self: StandIn) -> int:
    handles, handle, path, value = held(self)
    if type(value) is tuple:  # what unpacks one counts on its length, which is the same in every call
        length = HandleRead(handle, (*path, (".", "__len__"), ("()", ((), {}))))
        return int(handles.constant(length, len(value), exact=True))
    return int(_asked(self, "__len__"))


def _items(self: StandIn) -> Iterator[Any]:
    if type(held(self)[3]) not in (list, tuple):
        raise _refused(self, "goes through")
    return (_asked(self, "__getitem__", i) for i in range(_length(self)))


def _set_item(self: StandIn, key: Any, value: Any) -> None:
    _asked(self, "__setitem__", key, value)


def _call(self: StandIn, *args: Any, **kwargs: Any) -> Any:
    handles, handle, path, value = held(self)
    return handles.invoke(handle, path, value, args, kwargs)


_ANSWERED: dict[str, Callable[..., Any]] = {
    "__getitem__": lambda self, key: _asked(self, "__getitem__", key),
    "__contains__": lambda self, key: bool(_asked(self, "__contains__", key)),
    "__len__": _length,
    "__iter__": _items,
    "__setitem__": _set_item,
    "__call__": _call,
}


def _refused(value: StandIn, what: str) -> TraceError:
    handles, _, _, real = held(value)
    return handles.refuse(f"it {what} a {type(real).__name__} that it is given, and a trace has another")


def _refusing(what: str) -> Any:
    def method(self: StandIn, *others: Any, **named: Any) -> Any:
        raise _refused(self, what)

    return method


# What every object has.
_OF_ALL = {
    "compares": "eq ne lt le gt ge hash",
    "writes as text": "str repr format",
    "copies": "copy deepcopy reduce reduce_ex",
    "lists what there is in": "dir sizeof",
    "deletes something of": "delattr",
}
for _what, _names in _OF_ALL.items():
    for _name in _names.split():
        setattr(StandIn, f"__{_name}__", _refusing(_what))

_OF_EVERY = frozenset(name for each in StandIn.__mro__ for name in vars(each))

# Of a class itself, which its objects are not asked for by Python.
_OF_CLASSES = frozenset(
    "__new__ __init__ __del__ __init_subclass__ __subclasshook__ __class_getitem__ __getattr__ __getattribute__ "
    "__class__ __set_name__ __post_init__ __getnewargs__ __getnewargs_ex__ __getstate__ __setstate__ __dict__ __weakref__".split()
)


class _Sequence(StandIn):
    __slots__ = ()


class _Mapping(StandIn):
    __slots__ = ()


# A `match` takes objects for these by their classes, and by nothing that can be asked.
abc.Sequence.register(_Sequence)
abc.Mapping.register(_Mapping)
_SEQUENCE, _MAPPING = 1 << 5, 1 << 6  # Py_TPFLAGS of such classes


@functools.lru_cache(512)
def _kind_for(kind: type) -> type[StandIn]:
    """The class of what stands for objects of a class."""
    special: dict[str, Any] = {"__slots__": (), "__class__": property(lambda self: type(held(self)[3]))}
    own = {name: held for each in reversed(kind.__mro__) for name, held in vars(each).items()}
    for name, method in own.items():
        if not (name.startswith("__") and name.endswith("__")) or name in _OF_CLASSES or name in _OF_EVERY:
            continue
        if method is None:  # which says that there is none
            special[name] = None
        elif callable(method) or isinstance(method, (classmethod, staticmethod)):
            special[name] = _ANSWERED.get(name) or _refusing(f"uses {name} of")
    flags = kind.__flags__
    base = _Sequence if flags & _SEQUENCE else _Mapping if flags & _MAPPING else StandIn
    return type("StandIn", (base,), special)


def stand_in(handles: Owner, handle: int, path: Path, value: Any) -> StandIn:
    """What stands for an object, or for what a path in it leads to."""
    kind: type = type(value)
    made = object.__new__(_kind_for(kind))
    _KEPT.__set__(made, (handles, handle, path, value))
    return made


def is_stand_in(value: Any) -> TypeGuard[StandIn]:
    """Returns if something stands for an object of the call."""
    return issubclass(type(value), StandIn)


def handle_number(value: Any) -> int | None:
    """The number of the handle a stand-in (not a part of it) stands for, None for anything else."""
    if not is_stand_in(value):
        return None
    _, handle, path, _ = held(value)
    return None if path else int(handle)


def handle_path(value: Any) -> tuple[int, Path] | None:
    """The handle and the path in it that a stand-in stands for, None for anything else."""
    if not is_stand_in(value):
        return None
    _, handle, path, _ = held(value)
    return int(handle), path
