"""What is read of values that are no Python object's attributes, by a function each: equal results, equal states."""

from __future__ import annotations

import functools
import gc
import importlib.util
import types
from collections.abc import Callable
from typing import Any

from .actions import SUBCLASSES
from .source import MISSING, static_attribute
from .values import BUFFERS


def array_state(value: Any) -> Any:
    """The contents of a numpy array, or of other numbers in memory."""
    if isinstance(value, BUFFERS):
        return type(value), memoryview(value).tobytes()
    return value.shape, str(value.dtype), value.flags.writeable, value.tobytes()


def variable_state(value: Any) -> Any:
    """What a context variable is set to, or gives where it is not."""
    try:
        return value.get()
    except LookupError:
        return MISSING


def is_empty(cell: types.CellType) -> bool:
    """Returns if a variable of a closure has no value yet."""
    try:
        return cell.cell_contents is MISSING
    except ValueError:
        return True


def wanted_gradients(module: Any) -> Any:
    """Which parameters of a module want gradients."""
    return tuple(parameter.requires_grad for parameter in module.parameters())


def environment_state(value: Any) -> Any:
    """All variables of the environment."""
    return tuple(value._data.items())


@functools.cache
def can_be_found(name: str) -> Callable[[Any], bool]:
    """If there is a Python module of a name to import, which was not there."""

    def can_be_found(value: Any) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False

    return can_be_found


def subclasses(kind: type) -> tuple[type, ...]:
    """The classes that are made of a class."""
    return tuple(kind.__subclasses__())


def has_plain_subclasses(kind: type) -> bool:
    """Returns if Python itself says which classes are made of a class."""
    return (
        static_attribute(kind, SUBCLASSES)[0] is MISSING and static_attribute(type(kind), SUBCLASSES)[0] is _SUBCLASSES
    )


_SUBCLASSES = vars(type)[SUBCLASSES]

# What Python itself puts into a class at some time: where copies are made, and where annotations are asked for. And what may
# be there while a trace observes.
OF_PYTHON = frozenset({"__slotnames__", "__annotations__", "__getattribute__"})


_CODE = (types.FunctionType, classmethod, staticmethod, property)


def code_of(kind: type) -> dict[str, Any]:
    """The names that a class itself has, with the code behind those that are code, and its description."""
    return {n: held if isinstance(held, _CODE) else None for n, held in vars(kind).items() if n not in OF_PYTHON} | {
        "__doc__": kind.__doc__
    }


def attributes_of(kind: type) -> dict[str, Any]:
    """All that a class itself has, by name."""
    return {name: held for name, held in vars(kind).items() if name not in OF_PYTHON}


def lineage(kind: type) -> tuple[Any, ...]:
    """What a class is called, and the classes that it is made of."""
    return kind.__name__, kind.__qualname__, kind.__module__, kind.__mro__


def getter_names(value: Any) -> tuple[type, tuple[int | str, ...]]:
    """The class of a getter of `operator`, and under which places and names it was given something."""
    return type(value), tuple(_given(value))


@functools.cache
def given_to_getter(name: int | str) -> Callable[[Any], Any]:
    """What a getter was given at a place, or under a name."""

    def given_to_getter(value: Any) -> Any:
        return _given(value).get(name, MISSING)

    return given_to_getter


def _given(value: Any) -> dict[int | str, Any]:
    maker, given = value.__reduce__()
    found: dict[int | str, Any] = dict(enumerate(given))
    if isinstance(maker, functools.partial):  # one that calls a method is made of its name and what it is given by name
        found.update({"name": maker.args[0], **maker.keywords})
    return found


def most_items(value: Any) -> tuple[int | None]:
    """How many items a deque can have."""
    return (value.maxlen,)


def builtin_self(value: Any) -> Any:
    """The object that a method written in C belongs to."""
    return value.__self__


def referent(value: Any) -> Any:
    """What a weak reference is to."""
    return value()


def viewed(value: Any) -> Any:
    """The dict that a view shows, which cannot be written through it."""
    return gc.get_referents(value)[0]


PROBES: dict[str, Callable[[Any], Any]] = {
    "array": array_state,
    "bound": builtin_self,
    "view": viewed,
}
