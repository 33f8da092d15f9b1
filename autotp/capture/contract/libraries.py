"""Whose a class or a Python module is: torch's, numpy's or Python's own, or a user's that calls itself like one of these."""

from __future__ import annotations

import sys
import sysconfig
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch
from torch._ops import OpOverloadPacket

from .source import MISSING
from .values import PLAIN

_NAMED = frozenset({"torch", "numpy"})
OPERATORS = frozenset({"aten", "prims", "autotp"})  # of torch and of ours
_OF_PYTHON = frozenset(sys.stdlib_module_names)
_STANDARD = Path(sysconfig.get_path("stdlib"))
_HEAP_TYPE = 1 << 9
_METHODS_OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
# Constants of which a model's code may make classes of its own, whose objects may have attributes.
_OPEN = (*PLAIN, numpy.generic, torch.Size)


def is_of_library(kind: type) -> bool:
    """Returns if a class is torch's, numpy's or Python's own: what makes classes for others is named in these, too."""
    package = str(kind.__module__).partition(".")[0]
    if package in _NAMED:
        return True
    if package not in _OF_PYTHON:
        return False
    return not kind.__flags__ & _HEAP_TYPE or _is_found(kind) or _is_of_c(kind)


def _is_found(kind: type) -> bool:
    """Returns if a class is where it says: in a Python module of Python's own, or in a function of it."""
    found: Any = sys.modules.get(kind.__module__)
    if found is None or not is_module_of_library(vars(found)):
        return False
    for name in kind.__qualname__.split("."):
        if name == "<locals>":
            return True
        found = getattr(found, name, MISSING)
    return found is kind


def _is_of_c(kind: type) -> bool:
    return any(isinstance(held, _METHODS_OF_C) and held.__objclass__ is kind for held in vars(kind).values())


def is_module_of_library(namespace: Mapping[str, Any]) -> bool:
    """Returns if a Python module is, by what it holds."""
    name = str(namespace.get("__name__"))
    package = name.partition(".")[0]
    if package in _NAMED:
        return True
    return package in _OF_PYTHON and _is_standard(str(namespace.get("__file__") or ""), name)


def foreign_library(function: Any) -> frozenset[str]:
    """The name of the library that has brought an operator to torch; nothing for torch's own and ours, and for what is no
    operator."""
    packet = getattr(function, "_overloadpacket", function)
    if not isinstance(packet, OpOverloadPacket):
        return frozenset()
    return frozenset({str(packet._qualified_op_name).partition("::")[0]}) - OPERATORS


@cache
def _is_standard(file: str, name: str) -> bool:
    """Returns if a Python module is one of Python's own: by where its file is, if it has one."""
    if not file:
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        return name in sys.builtin_module_names or origin in ("built-in", "frozen")
    return _STANDARD in Path(file).parents and "site-packages" not in file


def has_more(value: Any) -> bool:
    """Returns if a number or a word is of a class that a model's code made, and so may have attributes."""
    return isinstance(value, _OPEN) and type(value) not in _OPEN and not is_of_library(type(value))
