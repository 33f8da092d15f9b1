"""What a module is like: facts about it that can be compared with those about another one."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .contract.source import is_a


def describe(module: nn.Module, by_identity: bool = False) -> dict[tuple[str, str], Any]:
    """Hashable facts about every attribute of every submodule, by (module path, attribute).

    Which of them are one object counts, which object that is does not, unless it is asked for `by_identity`: what is read from
    objects is guarded.
    """
    facts: dict[tuple[str, str], Any] = {}
    parts = dict(module.named_modules())
    describe = _Description(parts, by_identity)
    for path, part in parts.items():
        own = vars(part)
        facts[path, ""] = type(part)
        for name in _own_names(tuple(own)):
            value = own[name]
            facts[path, name] = value if type(value) in _PLAIN else describe(value)
        for held in filter(None, (part._parameters, part._buffers)):
            for name, tensor in held.items():
                facts[path, name] = None if tensor is None else describe.tensor(tensor)
    return facts


@functools.lru_cache(1 << 10)
def _own_names(attributes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a module's attributes that not every module has; most modules of a class have the same."""
    return tuple(name for name in attributes if name not in _MODULE_INTERNALS)


_MODULE_INTERNALS = frozenset(vars(nn.Module())) - {"training"}


_PLAIN = frozenset({type(None), bool, int, float, str})


class _Description:
    """Describes values; objects that it meets again are known by the number that they got first."""

    def __init__(self, parts: Mapping[str, nn.Module], by_identity: bool) -> None:
        self.numbers: dict[int, int] = {}
        self.by_identity = by_identity
        self.modules = parts

    @functools.cached_property
    def parts(self) -> Mapping[int, str]:
        """The path of each module."""
        return {id(part): path for path, part in self.modules.items()}

    def __call__(self, value: Any, depth: int = 3) -> Any:
        if type(value) in _PLAIN or is_a(value, (bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size)):
            return value
        if is_a(value, torch.Tensor):
            return self.tensor(value)
        if is_a(value, (list, tuple)) and depth:
            return (type(value), *(self(part, depth - 1) for part in value))
        if is_a(value, dict) and depth:
            return ("dict", *((self(k), self(v, depth - 1)) for k, v in value.items()))
        if is_a(value, types.MethodType):
            return ("method", self(value.__func__), self(value.__self__))
        if id(value) in self.parts:
            return ("module", self.parts[id(value)])
        if is_a(value, types.FunctionType):
            return ("function", id(value.__code__))
        if is_a(value, functools.partial) and depth:
            return ("partial", *(self(part, depth - 1) for part in (value.func, value.args, value.keywords)))
        if is_a(value, (type, types.BuiltinFunctionType)):
            return id(value)
        return type(value), id(value) if self.by_identity else self._number(value)

    def tensor(self, value: torch.Tensor) -> tuple[Any, ...]:
        """What a tensor is like, and which one it is."""
        return "tensor", value.shape, value.dtype, self._number(value)

    def _number(self, value: Any) -> int:
        return self.numbers.setdefault(id(value), len(self.numbers))
