"""Kinds of values: how each is observed, and when two of them are the same to a program."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import functools
import importlib.machinery
import logging
import operator
import os
import random
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from .looks import Looks
from .source import Missing

PLAIN = (type(None), bool, int, float, complex, str, bytes)
_FIXED = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    range,
    slice,
    type(Ellipsis),
    type(NotImplemented),
    numpy.generic,
)
# Numbers in memory that Python's own tools show and write.
BUFFERS: Any = (
    array.array,
    bytearray,
    memoryview,
    ctypes.c_int.__mro__[2],
)  # the last one is the class of all of C's own values
ARRAYS = (numpy.ndarray, numpy.void, *BUFFERS)  # the second one is a record of a numpy array, which can be written to
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
MOST_ITEMS = 4096
_CACHE = type(functools.lru_cache(lambda: None))
# Nothing of these is read but what they are: two are the same if they are one object.
_BY_IDENTITY = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.GenericAlias,
    types.UnionType,
    types.CodeType,
    numpy.ufunc,
    property,
    classmethod,
    staticmethod,
)
RANDOM = (random.Random, numpy.random.Generator, numpy.random.RandomState, torch.Generator)
GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


def kind_of(value: Any) -> str:
    """The kind of a value: "unobservable" if nothing can tell what is read from it, "moving" if reading changes it, too."""
    own = type(value)
    for classes, kind in _KINDS:
        if issubclass(own, classes):
            return kind if kind != "array" or _is_plain_memory(value) else "unobservable"
    if issubclass(own, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return "identity" if isinstance(value.__self__, _NO_OBJECT) or _is_of_pybind(type(value.__self__)) else "bound"
    if issubclass(own, _BY_IDENTITY) or own is object or is_of_torch(own):
        return "identity"
    if issubclass(own, Iterator):
        return "moving"
    if _has_plain_state(own):
        return "object"
    return "constant" if _is_compared_by_value(own) else "unobservable"


def _is_plain_memory(value: Any) -> bool:
    """Returns if numbers lie in memory itself, and not where they are."""
    if isinstance(value, (numpy.ndarray, numpy.void)):
        return not value.dtype.hasobject
    return not isinstance(value, BUFFERS[-1]) or _is_plain_in_c(type(value))


def _is_plain_in_c(kind: Any) -> bool:
    """Returns if values of a class of C's hold no pointers."""
    if issubclass(kind, ctypes.Array):
        return _is_plain_in_c(kind._type_)
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        fields = (field for each in kind.__mro__ for field in vars(each).get("_fields_", ()))
        return all(_is_plain_in_c(field[1]) for field in fields)
    return getattr(kind, "_type_", "P") in tuple("?cbBhHiIlLqQfdgu")


_NO_OBJECT = (type, types.ModuleType, type(None))


def _is_of_pybind(kind: type) -> bool:
    """Returns if a function written in C++ belongs to such an object: it has no other."""
    return kind.__name__.startswith("pybind11_")


_KINDS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "tensor"),
    (nn.Module, "module"),
    (ARRAYS, "array"),
    ((*PLAIN, *_FIXED, Enum, Missing), "constant"),
    (types.FunctionType, "function"),
    (types.MethodType, "method"),
    (_CACHE, "cache"),
    (contextvars.ContextVar, "variable"),
    (threading.local, "unobservable"),
    (RANDOM, "random"),
    (type(os.environ), "environment"),
    (types.GeneratorType, "moving"),
    (CONTAINERS, "container"),
    (functools.partial, "partial"),
    (GETTERS, "getter"),
    (weakref.ReferenceType, "reference"),
    (types.MappingProxyType, "view"),
)


def is_of_torch(kind: type) -> bool:
    """Returns if the machinery of torch, or ours, is behind an object: what it keeps is not a model's state."""
    return kind.__module__.partition(".")[0] in _REPORTED and not is_value_of_torch(kind)


def is_value_of_torch(kind: type) -> bool:
    """Returns if objects of a class of torch's hold what a user gave them, which its own code reads unobserved."""
    return kind.__module__.startswith(_VALUES) or kind is logging.LoggerAdapter or issubclass(kind, torch._C.Future)


_VALUES = (
    "torch.distributions.",
    "torch.nn.",
    "torch.optim.",
    "torch.quasirandom",
    "torch.amp.grad_scaler",
    "torch.utils.data.",
    "torch.utils.weak",
)


_REPORTED = frozenset({"autotp", "torch", "sympy", "typing", "logging", "_thread"})


_OPEN = (object, dict, list, tuple, set, frozenset, collections.OrderedDict, collections.defaultdict, collections.deque)
_OPEN_NAMES = frozenset({"types.SimpleNamespace", "builtins.BaseException", "builtins.Exception"})


def _has_plain_state(kind: type) -> bool:
    """Returns if all that objects of a class hold lies in attributes and items: no code but Python's has written it."""
    return all(c in _OPEN or f"{c.__module__}.{c.__qualname__}" in _OPEN_NAMES or _is_python(c) for c in kind.__mro__)


def _is_python(kind: type) -> bool:
    if not kind.__flags__ & (1 << 9):  # Py_TPFLAGS_HEAPTYPE: static classes are written in C
        return kind.__module__ in ("abc", "typing", "collections.abc")
    if kind.__module__ == "pybind11_builtins":  # below all that is written in C++
        return False
    if any(isinstance(held, _METHODS_OF_C) and held.__objclass__ is kind for held in vars(kind).values()):
        return False  # which may call itself one of a Python module's, as those of `re` do
    loader = getattr(getattr(sys.modules.get(kind.__module__), "__spec__", None), "loader", None)
    compiled = (importlib.machinery.ExtensionFileLoader, importlib.machinery.BuiltinImporter)
    return not (isinstance(loader, compiled) or loader in compiled)


_METHODS_OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


def _is_compared_by_value(kind: type) -> bool:
    """Returns if a class written in C hashes its objects by their values, and so says that these do not change."""
    own: tuple[Any, Any] = kind.__hash__, kind.__eq__
    return own[0] not in (None, object.__hash__) and own[1] is not object.__eq__ and not _is_python(kind)


def is_key(value: Any) -> bool:
    """Returns if nothing can be read from a key, or an item of a set, but what it is."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_key, value))
    return kind_of(value) in ("constant", "identity")


def as_expected(value: Any) -> Any:
    """What is kept of a value to compare others with: of a tensor what it looks like now."""
    return Looks.of(value) if isinstance(value, torch.Tensor) else value


def agree(expected: Any, now: Any) -> bool:
    """Returns if a program that was traced with one value holds for another one, as far as the value itself goes.

    Of containers, objects and functions that is their class or code; what was read from them is compared by itself.
    """
    if isinstance(expected, Looks):
        return isinstance(now, torch.Tensor) and expected.are_of(now)
    if expected is now:
        return True
    kind = kind_of(expected)
    if kind == "constant":
        return is_same(expected, now)
    if kind == "function":
        if type(now) is not type(expected) or now.__code__ is not expected.__code__:
            return False
        return all(getattr(now, name) == getattr(expected, name) for name in NAMES)
    if kind in ("identity", "bound") or isinstance(expected, torch.Generator):  # graphs hold generators themselves
        return False
    return type(now) is type(expected)


# What code may ask of a function, and what two of the same code usually have alike.
NAMES = ("__name__", "__qualname__", "__module__", "__doc__")
_EXACT = (type(None), bool, int, str, bytes)  # classes whose equal objects are the same to everybody


def is_same(one: Any, other: Any) -> bool:
    """Returns if a constant is the same to a program: 1, 1.0 and True are three, so are zeros of both signs, and what is not a
    number is the same as itself."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, (float, numpy.floating)):
        return repr(one) == repr(other)  # tells zeros of both signs apart
    is_exact = isinstance(one, Enum) or type(one) in _EXACT
    return bool(one == other) and (is_exact or repr(one) == repr(other))  # Decimal("1") and Decimal("1.00")


def are_same_keys(some: Any, others: Any) -> bool:
    """Returns if the keys of a dict, or the items of a set, are the same to a program as others, and in the same order."""
    return len(some) == len(others) and all(map(_is_same_key, some, others))


def _is_same_key(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, frozenset)) and one is not other:
        return type(one) is type(other) and are_same_keys(tuple(one), tuple(other))
    return agree(one, other)


def memory_of(tensor: torch.Tensor) -> int:
    """Where the numbers of a tensor lie; 0 where there are none."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return 0
    try:
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a class of tensors that has none of its own
        return 0


def is_cut(value: Any) -> bool:
    """Returns if something is a cut parameter, whatever its class."""
    return isinstance(value, torch.Tensor) and "autotp_origin" in getattr(value, "__dict__", ())


def may_write(function: Any, kwargs: Mapping[str, Any]) -> bool:
    """Returns if a function of torch may write into what it is given, going by its name and its settings."""
    name = str(getattr(function, "__name__", "")).partition(".")[0]
    in_place = name.endswith("_") if not name.endswith("__") else name[2:-2] in _IN_PLACE
    return in_place or "out" in kwargs or bool(kwargs.get("inplace"))


_IN_PLACE = frozenset(
    {
        "setitem",
        "set",
        *(f"i{name}" for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split()),
    }
)
