"""Copies of a model that are whole: what functions and weak references within it hold of the model is held of the copy.

`copy.deepcopy` leaves functions as they are, so that a lambda over `self` would compute with the model that was copied, in the
dense run and on every rank alike. What no copy can hold otherwise, a global or an object of C, is found when the copy runs.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..errors import UsageError, in_one_line

MSG_COPY = (
    "verify compares copies of {kind}, and it cannot be copied ({error}); take out what cannot, or give verify a module that is"
    " made without it"
)
MSG_ORIGINAL = (
    "{name} of the model that verify has copied is read in a call of the copy, through a global, a class or an object that holds"
    " the model itself; let the model be held by its own modules only"
)


def copied(model: nn.Module) -> nn.Module:
    """A deep copy. Raises UsageError for a model that cannot be copied."""
    memo: dict[int, Any] = {id(made): made.detach().clone() for made in _made_at_each_call(model)}
    try:
        twin: nn.Module = copy.deepcopy(model, memo)
    except Exception as error:  # whatever its attributes say to being copied
        raise UsageError(MSG_COPY.format(kind=type(model).__name__, error=in_one_line(error))) from error
    kept = memo.pop(id(memo), [])  # the originals, whose identities are in use as long as this is
    binding = _Binding(memo)
    for part in list(memo.values()):
        binding.inside(part)
    del kept
    return twin


def _made_at_each_call(model: nn.Module) -> Iterator[torch.Tensor]:
    """What hooks of torch make of a module's parameters before each of its calls, and so need not be as it is in a copy."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, (WeightNorm, SpectralNorm, BasePruningMethod)):
                name = hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name
                if isinstance(made := vars(module).get(name), torch.Tensor):
                    yield made


class _Binding:
    """Puts copies into what deepcopy has left as it was; `memo` has the copy of every object that was copied."""

    def __init__(self, memo: Mapping[int, Any]) -> None:
        self.memo, self.made = memo, dict[int, Any]()
        self.kept: list[Any] = []

    def inside(self, part: Any) -> None:
        """Look at everything that a copied object holds."""
        if isinstance(part, list):
            part[:] = map(self.of, part)
        elif isinstance(part, dict):
            for key, value in list(part.items()):
                part[key] = self.of(value)
        elif not isinstance(part, (torch.Tensor, type)):
            for name, value in list(getattr(part, "__dict__", {}).items()):
                part.__dict__[name] = self.of(value)
            for name in {name for kind in type(part).__mro__ for name in vars(kind).get("__slots__", ())}:
                if isinstance(getattr(part, name, None), (*_LEFT, tuple)):
                    object.__setattr__(part, name, self.of(getattr(part, name)))

    def of(self, value: Any) -> Any:
        """What stands for a value in the copy."""
        if id(value) in self.memo:
            return self.memo[id(value)]
        if id(value) not in self.made:
            self.kept.append(value)
            self.made[id(value)] = value
            self.made[id(value)] = self._made(value)
        return self.made[id(value)]

    def _made(self, value: Any) -> Any:
        if isinstance(value, weakref.ref) and type(value) is weakref.ref:
            held = self.of(value())
            return value if held is value() else weakref.ref(held)
        if type(value) is tuple:
            parts = tuple(map(self.of, value))
            return value if _same(parts, value) else parts
        if isinstance(value, types.MethodType):
            function, owner = self.of(value.__func__), self.of(value.__self__)
            return value if _same((function, owner), (value.__func__, value.__self__)) else type(value)(function, owner)
        if type(value) is functools.partial:
            given = value.func, *value.args, *value.keywords.values()
            function, *own = map(self.of, given)
            args, rest = own[: len(value.args)], own[len(value.args) :]
            made = functools.partial(function, *args, **dict(zip(value.keywords, rest, strict=True)))
            return value if _same((function, *own), given) else made
        if isinstance(value, types.FunctionType) and self._holds(value, set()):
            return self._function(value)
        return value

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        closure = tuple(self.made.setdefault(id(cell), types.CellType()) for cell in function.__closure__ or ())
        twin = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, closure or None)
        twin.__dict__.update(function.__dict__)
        twin.__qualname__, self.made[id(function)] = function.__qualname__, twin  # it may hold itself
        for cell, own in zip(function.__closure__ or (), closure, strict=True):
            for held in _content(cell):
                own.cell_contents = self.of(held)
        twin.__defaults__ = function.__defaults__ and tuple(map(self.of, function.__defaults__))
        twin.__kwdefaults__ = function.__kwdefaults__ and {n: self.of(v) for n, v in function.__kwdefaults__.items()}
        return twin

    def _holds(self, value: Any, seen: set[int]) -> bool:
        """Returns if a function, or what it holds, holds something that was copied."""
        if id(value) in self.memo:
            return True
        if id(value) in seen or not isinstance(value, (*_LEFT, tuple)):
            return False
        seen.add(id(value))
        return any(self._holds(held, seen) for held in _held(value))


_LEFT = (types.FunctionType, types.MethodType, functools.partial, weakref.ref)


def _held(value: Any) -> Iterable[Any]:
    if isinstance(value, types.FunctionType):
        contents = [held for cell in value.__closure__ or () for held in _content(cell)]
        return [*contents, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    return value if isinstance(value, tuple) else (value(),)


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing yet
        return ()


def _same(values: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(values, others, strict=True))


class OnlyCopies(TorchFunctionMode):
    """Raises UsageError where a tensor of one of the models meets an operator: these were copied, and copies run inside."""

    def __init__(self, *models: nn.Module) -> None:
        super().__init__()
        self.models = models
        named = [pair for model in models for pair in (*model.named_parameters(), *model.named_buffers())]
        self.names = {id(tensor): name for name, tensor in named}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and id(leaf) in self.names:
                raise UsageError(MSG_ORIGINAL.format(name=self.names[id(leaf)]))
        return func(*args, **(kwargs or {}))
