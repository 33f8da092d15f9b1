"""Structural copies of modules: the same Python objects and tensors, so that tracing touches no user's model."""

from __future__ import annotations

import functools
import operator
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parameter import is_lazy

from ..errors import TraceError

_KEPT = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = tuple(name for name, value in vars(nn.Module()).items() if "hooks" in name and isinstance(value, dict))
# The attribute of what takes the place of a module's `forward` that says what the module itself had under that name, or None.
OWN_FORWARD = "own_forward"
# Those that run in a forward, and of these the ones that hold functions; the others say how these are called.
_FORWARD_HOOKS = tuple(name for name in _HOOKS if name.startswith("_forward"))
_HOOK_FUNCTIONS = frozenset({"_forward_hooks", "_forward_pre_hooks"})


def clone(
    module: nn.Module,
    tensor: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    stop: Callable[[nn.Module], nn.Module | None] = lambda module: None,
    hooks: bool = False,
    attribute: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> nn.Module:
    """Copy a module tree without what autotp has put in place of a `forward`, and with `hooks` only with those of the parts.

    `tensor` replaces every parameter, buffer and tensor attribute (the latter `attribute`, if given); `stop` may give
    another module instead of a copy. What attributes hold of the tree (a list of its modules, a method of one) becomes the
    same of the copy.
    """
    cloned = _Cloned(tensor, attribute or tensor, stop)
    twin, memo = cloned.twin_of(module), cloned.memo
    for original, copied in cloned.pairs:
        own = copied.__dict__
        if hooks and original is not module:
            own.update({name: _hooks_to_run(original, name, memo) for name in _FORWARD_HOOKS})
        for name, value in own.items():
            if name not in _KEPT:
                own[name] = _of_copy(value, memo)
    return twin


class _Cloned:
    """The modules that were copied, by identity, and in their order with their copies."""

    def __init__(self, tensor: Any, attribute: Any, stop: Any) -> None:
        self.tensor, self.attribute, self.stop = tensor, attribute, stop
        self.memo: dict[int, nn.Module] = {}
        self.pairs: list[tuple[nn.Module, nn.Module]] = []

    def twin_of(self, module: nn.Module) -> nn.Module:
        if id(module) in self.memo:
            return self.memo[id(module)]
        replacement = self.stop(module)
        twin = self.memo[id(module)] = bare(module) if replacement is None else replacement
        if twin is not module:
            self.pairs.append((module, twin))
        if replacement is None:
            self._fill(twin, module)
        return twin

    def _fill(self, twin: nn.Module, module: nn.Module) -> None:
        for name, value in vars(twin).items():
            if isinstance(value, torch.Tensor):
                twin.__dict__[name] = self.attribute(value)
        # In its dict: a module looks at everything that is set on it, and there are many of them.
        made, parts = self.tensor, module._modules
        twin.__dict__["_parameters"] = {n: p if p is None else made(p) for n, p in module._parameters.items()}
        twin.__dict__["_buffers"] = OrderedDict((n, b if b is None else made(b)) for n, b in module._buffers.items())
        twin.__dict__["_modules"] = OrderedDict((n, m if m is None else self.twin_of(m)) for n, m in parts.items())


def _hooks_to_run(module: nn.Module, name: str, memo: Mapping[int, nn.Module]) -> Any:
    """The hooks around a module's forward that are the model's own: those of torch's wrappers are for real tensors."""
    held = module.__dict__[name]
    if name not in _HOOK_FUNCTIONS:
        return OrderedDict(held)
    return OrderedDict((key, _of_copy(hook, memo)) for key, hook in held.items() if not _is_of_wrapper(hook))


def _is_of_wrapper(hook: Any) -> bool:
    function = getattr(hook, "__func__", getattr(hook, "func", hook))
    return str(getattr(function, "__module__", "")).startswith("torch.distributed")


def _of_copy(value: Any, memo: Mapping[int, Any], depth: int = 6) -> Any:
    """A value with modules replaced by their copies, in lists, tuples and dicts, methods, partial functions and closures."""
    if id(value) in memo:
        return memo[id(value)]
    make = _COPIES.get(type(value))
    if make is None or not depth:
        return value
    parts, build = make(value)
    copied = [_of_copy(part, memo, depth - 1) for part in parts]
    return value if all(map(operator.is_, copied, parts)) else build(copied)


@contextmanager
def holding(twin: nn.Module, live: nn.Module, state: Mapping[str, torch.Tensor]) -> Iterator[frozenset[int]]:
    """While it lasts, lists and the like that are attributes within a twin hold, of the parameters of what it stands for, what
    takes these's place. Gives the ids of what is another one so, weak references to parameters included."""
    memo: dict[int, Any] = {id(p): state[name] for name, p in live.named_parameters(remove_duplicate=False)}
    parts = zip(live.modules(), twin.modules(), strict=True)
    held = [(vars(own), vars(part), name, value) for own, part in parts for name, value in vars(part).items()]
    changed, ids = list[tuple[dict[str, Any], str, Any]](), set[int]()
    for own, attributes, name, value in held:
        copied = value if name in _KEPT or type(value) not in _HOLDING else _of_copy(value, memo)
        if copied is not value:
            changed.append((attributes, name, value))
            attributes[name] = copied
            ids |= {id(own.get(name)), *map(id, copied_in(value, copied))}  # a twin has dicts of its own
    try:
        yield frozenset(ids)
    finally:
        for attributes, name, value in changed:
            attributes[name] = value


_HOLDING = (list, tuple, dict, functools.partial)


def copied_in(value: Any, copied: Any) -> Iterator[Any]:
    """Everything in a value that is another thing in its copy, the value included."""
    make = _COPIES.get(dict if isinstance(value, dict) else type(value))
    if value is copied or make is None or type(value) is not type(copied):
        return
    yield value
    parts, others = make(value)[0], make(copied)[0]
    if len(parts) == len(others):
        for part, other in zip(parts, others, strict=True):
            yield from copied_in(part, other)


def _method(value: types.MethodType) -> _Parts:
    return [value.__self__], lambda parts: types.MethodType(value.__func__, *parts)


def _partial(value: functools.partial[Any]) -> _Parts:
    return [value.func, value.args, value.keywords], lambda parts: functools.partial(parts[0], *parts[1], **parts[2])


def _function(value: types.FunctionType) -> _Parts:
    cells = [cell for cell in value.__closure__ or () if _is_filled(cell)]

    def build(parts: list[Any]) -> Any:
        new = {id(cell): types.CellType(part) for cell, part in zip(cells, parts, strict=True)}
        closure = tuple(new.get(id(cell), cell) for cell in value.__closure__ or ())
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, closure)
        made.__kwdefaults__ = value.__kwdefaults__
        return made

    return [cell.cell_contents for cell in cells], build


# What a value is made of, and how one is made of other parts.
_Parts: TypeAlias = tuple[Sequence[Any], Callable[[list[Any]], Any]]
_COPIES: Mapping[type, Callable[[Any], _Parts]] = {
    list: lambda value: (value, list),
    tuple: lambda value: (value, tuple),
    dict: lambda value: (list(value.values()), lambda parts: dict(zip(value, parts, strict=True))),
    types.MethodType: _method,
    types.FunctionType: _function,
    functools.partial: _partial,
    weakref.ReferenceType: lambda value: ([value()], lambda parts: weakref.ref(*parts)),
}


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def on_meta(module: nn.Module, shapes: Mapping[int, Sequence[int]] | None = None, **options: Any) -> nn.Module:
    """A copy with tensors on the meta device, tied ones tied; of other shapes where `shapes` has one for a tensor's identity.
    Buffers lie in memory as they do in the module. `options` are those of `clone`."""
    made: dict[int, torch.Tensor] = {}

    def meta(tensor: torch.Tensor) -> torch.Tensor:
        if is_lazy(tensor):
            raise TraceError("it has a parameter that gets its sizes in its first call")
        if id(tensor) not in made:
            parameter = isinstance(tensor, nn.Parameter)
            shape = None if shapes is None else shapes.get(id(tensor))
            if shape is None and not parameter and tensor.layout is torch.strided:
                value = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            else:
                value = torch.empty(tuple(shape or tensor.shape), dtype=tensor.dtype, device="meta")
            wanted = tensor.requires_grad
            made[id(tensor)] = nn.Parameter(value, wanted) if parameter else value.requires_grad_(wanted)
        return made[id(tensor)]

    return clone(module, meta, **options)


def bare(module: nn.Module) -> nn.Module:
    """A copy of one module without its hooks, of the class that it had before FSDP; what it keeps in a dict is its own, and a
    `forward` of its own the one that it had before autotp put another in its place."""
    kind: Any = type(module)
    kind = kind.__mro__[2] if issubclass(kind, FSDPModule) else kind
    twin: nn.Module = kind.__new__(kind)
    twin.__dict__ = {n: value.copy() if type(value) is dict else value for n, value in module.__dict__.items()}
    forward = twin.__dict__.pop("forward", None)
    own = getattr(forward, OWN_FORWARD, forward)
    if own is not None:
        twin.__dict__["forward"] = own
    for name in _HOOKS:
        twin.__dict__[name] = OrderedDict()
    if "gradient_checkpointing" in twin.__dict__:
        twin.__dict__["gradient_checkpointing"] = False  # what is computed twice is up to those who run a trace
    return twin
