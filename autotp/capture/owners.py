"""Whose a Python function or object is: the package in which its code was written, whatever it is called.

Names say little: a wrapper takes over the name of what it wraps, and anybody may define a function that is called like a
known one. The globals of a function are those of the module that it was written in.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch

from .opaque import objects_in
from .state import CONSTANTS


def package_of(function: Any) -> str:
    """The package whose code a function, a method or a class's own derivative runs; empty if it is not Python's."""
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        function = function.forward
    function = inspect.unwrap(getattr(function, "__func__", function), stop=lambda f: not _is_code(f))
    return str(function.__globals__.get("__name__", "")).partition(".")[0] if _is_code(function) else ""


def _is_code(value: Any) -> bool:
    return isinstance(value, types.FunctionType)


def packages_within(value: Any) -> frozenset[str]:
    """The packages that define the classes of an object and of all objects in it, but for Python's and torch's."""
    kinds = {type(part) for part in objects_in(value) if not isinstance(part, (torch.Tensor, *CONSTANTS))}
    return frozenset(kind.__module__.partition(".")[0] for kind in kinds) - _NEUTRAL


_NEUTRAL = frozenset({"builtins", "collections", "torch", "functools", "types"})
