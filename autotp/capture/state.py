"""What is in an object of a call: its parts, and its state, which a method of it may change."""

from __future__ import annotations

import collections
import functools
import random
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy
import torch
from torch import nn

CONSTANTS = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, Enum)
# Whose state is not looked into: none of their own, or told by their identity.
_WHOLE = (torch.Tensor, type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType)


def parts_of(value: Any) -> Iterator[Any]:
    """What an object holds: the values of a container, and its attributes. A Python module holds nothing: it is everybody's."""
    if isinstance(value, types.ModuleType):
        return
    if isinstance(value, dict):
        yield from dict.values(value)  # a class of its own may make some when it is asked
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        yield from value
    if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, type)):
        return
    if hasattr(value, "__dict__"):
        yield from vars(value).values()
    for name in slots_of(type(value)):
        if hasattr(value, name):
            yield getattr(value, name)


def slots_of(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        names = vars(each).get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                yield f"_{each.__name__.lstrip('_')}{name}" if private else name


def state_of(value: Any, seen: set[int] | None = None) -> list[Any]:
    """The constants in an object and the identities of its tensors: two lists differ if something in it was changed."""
    seen = set() if seen is None else seen
    if isinstance(value, (*CONSTANTS, torch.SymInt)):
        return [type(value), str(value)]
    if id(value) in seen or isinstance(value, type):
        return []
    seen.add(id(value))
    inside = [state for part in _known_parts(value) for state in state_of(part, seen)]
    return [id(value), *_contents(value), *inside]


def _known_parts(value: Any) -> Iterator[Any]:
    """The parts of an object, the keys of a dict and the names of its attributes, each before what it stands for."""
    yield from value if isinstance(value, dict) else ()
    yield from getattr(value, "__dict__", ()) if not isinstance(value, _WHOLE) else ()
    yield from (name for name in slots_of(type(value)) if hasattr(value, name))
    yield from parts_of(value) if not isinstance(value, _WHOLE) else ()


def _contents(value: Any) -> list[Any]:
    """The state of what has neither parts nor attributes: as copies of it would be made."""
    if isinstance(value, numpy.ndarray):
        return [str(value.dtype), value.shape, value.tobytes()]
    if isinstance(value, (bytearray, memoryview)):
        return [bytes(value)]
    if isinstance(value, random.Random):
        return [str(value.getstate())]
    if isinstance(value, torch.Generator):
        return [value.get_state().tolist()]
    plain = isinstance(value, (*_WHOLE, nn.Module, list, tuple, dict, set, frozenset, collections.deque))
    if plain or hasattr(value, "__dict__") or any(True for _ in slots_of(type(value))):
        return []
    try:
        return _reduced(value.__reduce_ex__(4))
    except Exception:  # it has no state that a copy would have
        return []


def _reduced(made: Any) -> list[Any]:
    """What an object is made of again, which itself is made anew each time."""
    if isinstance(made, (tuple, list)):
        return [state for part in made for state in _reduced(part)]
    if isinstance(made, dict):
        return [state for item in made.items() for state in _reduced(item)]
    return [repr(made)] if isinstance(made, (*CONSTANTS, complex)) else [id(made)]


@functools.lru_cache(4096)
def runs_code(kind: Any, name: str) -> bool:
    """Returns if code of a class runs when an attribute is read, other than to keep what it gives."""
    if kind.__getattribute__ is not object.__getattribute__:
        return True
    written = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
    if written is None:
        return hasattr(kind, "__getattr__")
    return hasattr(type(written), "__get__") and not isinstance(written, _RUNS_NONE)


_RUNS_NONE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    classmethod,
    staticmethod,
    functools.cached_property,
)
