"""Things that every process finds under a name: classes, functions and Python modules that are loaded, and torch's operators."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch

from ..contract.libraries import OPERATORS, foreign_library
from ..contract.source import MISSING


class UnnamedError(Exception):
    """Something has no name, or no text, that means the same in another process."""


def module_named(name: str) -> types.ModuleType:
    """A Python module that is loaded. Raises UnnamedError if it is not."""
    module = sys.modules.get(name)
    if not isinstance(module, types.ModuleType):
        raise UnnamedError
    return module


def found(module: str, name: str) -> Any:
    """What a loaded Python module has under a qualified name, MISSING if there is nothing. No code runs for that."""
    value: Any = sys.modules.get(module, MISSING)
    for part in name.split("."):
        value = vars(value).get(part, MISSING) if isinstance(value, (types.ModuleType, type)) else MISSING
    return value


def name_of(value: Any) -> list[str]:
    """Where a class or function is found: a Python module and a qualified name. Raises UnnamedError unless it is there."""
    module, name = str(getattr(value, "__module__", None)), str(getattr(value, "__qualname__", None))
    if module == "builtins" and value in _OF_PYTHON:
        module, name = "types", _OF_PYTHON[value]
    if found(module, name) is not value:
        raise UnnamedError
    return [module, name]


# Classes that Python itself makes and that builtins do not have.
_OF_PYTHON = {
    kind: name for name, kind in vars(types).items() if isinstance(kind, type) and not hasattr(builtins, kind.__name__)
}


def name_of_globals(namespace: Mapping[str, Any]) -> str:
    """The Python module that has these globals. Raises UnnamedError if none has."""
    name = str(namespace.get("__name__"))
    for each in (name, *sys.modules):  # one may call itself by another name
        module = sys.modules.get(each)
        if isinstance(module, types.ModuleType) and vars(module) is namespace:
            return each
    raise UnnamedError


def operator_name(operator: Any) -> str:
    """The name of one of torch's or our own operators, with that of its overload. Raises UnnamedError for any other."""
    if foreign_library(operator):
        raise UnnamedError
    packet = getattr(operator, "overloadpacket", operator)
    overload = [] if operator is packet else [operator._overloadname]
    return ".".join((*packet._qualified_op_name.split("::"), *overload))


def operator_named(name: str) -> Any:
    """An operator by its name. Raises UnnamedError if there is none."""
    namespace, *parts = name.split(".")
    value: Any = getattr(torch.ops, namespace) if namespace in OPERATORS else None
    for part in parts:
        value = getattr(value, part, None)
    if not isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        raise UnnamedError
    return value
