"""A stand-in: it takes the place of an object of the call, or of a part of it, while a unit is traced.

What it is asked goes to the handles of the trace, which guard the answer. What nothing can guard ends the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from ..errors import TraceError
from .opaque import Path
from .reads import HandleRead


class Owner(Protocol):
    """The handles of a trace."""

    def attribute(self, handle: int, path: Path, value: Any, name: str) -> Any:
        """An attribute of an object."""

    def invoke(self, handle: int, path: Path, bound: Any, args: Any, kwargs: Any) -> Any:
        """Call a method."""

    def refuse(self, problem: str) -> TraceError:
        """The error for what has no program."""


class StandIn:
    """Takes an object's place while tracing; says it is of the object's class."""

    def __init__(self, handles: Owner, handle: int, path: Path, value: Any) -> None:
        object.__setattr__(self, "_stand_in", (handles, handle, path, value))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(object.__getattribute__(self, "_stand_in")[3])

    def __getattr__(self, name: str) -> Any:
        handles, handle, path, value = object.__getattribute__(self, "_stand_in")
        return handles.attribute(handle, path, value, name)

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__("__getitem__")(key)

    def __len__(self) -> int:
        handles, handle, path, value = object.__getattribute__(self, "_stand_in")
        if type(value) is tuple:  # what unpacks one counts on its length, which is the same in every call
            length = HandleRead(handle, (*path, (".", "__len__"), ("()", ((), {}))))
            return int(handles.constant(length, len(value), exact=True))
        return int(self.__getattr__("__len__")())

    def __contains__(self, key: Any) -> bool:
        return bool(self.__getattr__("__contains__")(key))

    def __bool__(self) -> bool:
        kind = self.__class__
        if hasattr(kind, "__bool__"):
            return bool(self.__getattr__("__bool__")())
        return bool(self.__getattr__("__len__")() != 0) if hasattr(kind, "__len__") else True

    def __iter__(self) -> Iterator[Any]:
        kind: Any = self.__class__
        if kind not in (list, tuple):
            raise _refused(self, "goes through")
        return (self[i] for i in range(len(self)))

    def __setattr__(self, name: str, value: Any) -> None:
        self.__getattr__("__setattr__")(name, value)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__getattr__("__setitem__")(key, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        handles, handle, path, value = object.__getattribute__(self, "_stand_in")
        return handles.invoke(handle, path, value, args, kwargs)


def _refused(value: StandIn, what: str) -> TraceError:
    handles, _, _, real = object.__getattribute__(value, "_stand_in")
    error: TraceError = handles.refuse(f"it {what} a {type(real).__name__} that it is given, and a trace has another")
    return error


def _refusing(what: str) -> Any:
    def method(self: StandIn, *others: Any) -> Any:
        raise _refused(self, what)

    return method


_REFUSED = {
    "compares": "eq ne lt le gt ge hash",
    "writes as text": "str repr format",
    "copies": "copy deepcopy reduce reduce_ex",
    "computes with": "index int float complex add radd sub rsub mul rmul truediv rtruediv matmul rmatmul neg abs",
}
for _what, _names in _REFUSED.items():
    for _name in _names.split():
        setattr(StandIn, f"__{_name}__", _refusing(_what))


def handle_number(value: Any) -> int | None:
    """The number of the handle a stand-in (not a part of it) stands for, None for anything else."""
    if type(value) is not StandIn:
        return None
    _, handle, path, _ = object.__getattribute__(value, "_stand_in")
    return None if path else int(handle)


def handle_path(value: Any) -> tuple[int, Path] | None:
    """The handle and the path in it that a stand-in stands for, None for anything else."""
    if type(value) is not StandIn:
        return None
    _, handle, path, _ = object.__getattribute__(value, "_stand_in")
    return int(handle), path
