"""What a call of a unit looks like: its tensors, its opaque handles, and everything a program is specialised to."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ..errors import TraceError
from .opaque import Position
from .state import CONSTANTS

_VALUES = (bool, int, float, str, bytes)
_CONTAINERS = (list, tuple, dict)
_CONSTANTS = (*CONSTANTS, type, Position)
_HEAP_TYPE = 1 << 9  # of Python's flags of types: made by Python, and not in C


@dataclass(frozen=True)
class CallSite:
    """One flattened call: `leaves` holds constants, and markers where a tensor or a handle goes; `device` has the parameters."""

    key: tuple[Any, ...]
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    tensors: list[torch.Tensor]
    numbers: list[int]
    handles: list[Any]
    device: torch.device | None = None
    same: tuple[int, ...] = ()  # for each tensor the first one that it is

    def paths(self, kind: str) -> list[str]:
        """Where in the call each tensor, number or handle is, as text."""
        try:
            tree = pytree.tree_unflatten(list(self.leaves), self.spec)
        except Exception:  # a container of a class that looks at what it is made of
            numbered = enumerate(self.leaves)
            return [f"[{n}]" for n, leaf in numbered if isinstance(leaf, Slot) and leaf.kind == kind]
        flat, _ = pytree.tree_flatten_with_path(tree, is_leaf=_is_leaf)
        return [pytree.keystr(path) for path, leaf in flat if isinstance(leaf, Slot) and leaf.kind == kind]

    def is_like(self, other: CallSite) -> bool:
        """Returns if calls differ in nothing that a key tells but in whether the unit is in training."""
        return (self.key[0], *self.key[2:]) == (other.key[0], *other.key[2:])

    def check_classes(self) -> None:
        """Raises TraceError for a tensor of a class of its own, which does what a trace does not see, and for a sparse one."""
        for kind in map(type, self.tensors):
            if _class(kind) is not torch.Tensor:
                raise TraceError(f"it is given a {kind.__name__}, and a program computes with plain tensors")
        if any(tensor.layout is not torch.strided for tensor in self.tensors):
            raise TraceError("it is given a sparse tensor, and a program computes with dense ones")
        for kind in map(type, self.handles):
            if kind.__module__.partition(".")[0] == "torch" and not kind.__flags__ & _HEAP_TYPE:
                # For which nothing can stand: torch's C takes it.
                raise TraceError(f"it is given a {kind.__name__}, and a program computes with plain tensors")
        for leaf in self.leaves:
            if isinstance(leaf, _VALUES) and not isinstance(leaf, Enum) and hasattr(leaf, "__dict__"):
                raise TraceError(f"it is given a {type(leaf).__name__}, a constant that may have attributes")
        if _says_more(self.key[0]):
            raise TraceError("it is given a container that has attributes of its own, of which a program knows nothing")

    def rebuild(
        self, tensors: list[torch.Tensor], numbers: list[Any], handles: list[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments with other tensors, numbers and handles in the same places."""
        values = {"tensor": tensors, "number": numbers, "handle": handles}
        filled = [leaf.pick(values) if isinstance(leaf, Slot) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(filled, self.spec)
        return tuple(args), kwargs


@dataclass(frozen=True)
class Slot:
    """The place of the n-th tensor, number or handle among the leaves of a call or a result."""

    kind: str
    number: int

    def pick(self, values: Mapping[str, Sequence[Any]]) -> Any:
        return values[self.kind][self.number]


_slot = functools.cache(Slot)
_PACKAGE = __name__.partition(".")[0]


@functools.cache
def _class(kind: type) -> type:
    """What a trace takes a class of tensors for: a plain one, but for those that a user has made."""
    known = kind in (torch.Tensor, nn.Parameter, FakeTensor) or kind.__module__.partition(".")[0] == _PACKAGE
    return torch.Tensor if known else kind


def _is_leaf(value: Any) -> bool:
    return not isinstance(value, _CONTAINERS)


_CPU = torch.device("cpu")  # also what a trace takes for the place of tensors that have none
_specs: dict[Any, pytree.TreeSpec] = {}
_MOST_SPECS = 4096


def _flatten(tree: Any) -> tuple[list[Any], pytree.TreeSpec, Any]:
    """Leaves and spec as pytree gives them, and what the spec says as a value that is cheap to make and to compare."""
    leaves: list[Any] = []
    structure = _walk(tree, leaves)
    spec = _specs.get(structure)
    if spec is None:
        plain = pytree.tree_map(lambda leaf: tuple(leaf) if type(leaf) is torch.Size else leaf, tree)
        _, spec = pytree.tree_flatten(plain, is_leaf=_is_leaf)
        if len(_specs) >= _MOST_SPECS:
            _specs.clear()
        _specs[structure] = spec
    return leaves, spec, structure


def _walk(value: Any, leaves: list[Any]) -> Any:
    """Append the leaves of a tree in pytree's order; returns what tells its structure from any other."""
    kind = type(value)
    if kind is tuple or kind is list:
        return (kind, *[_walk(part, leaves) for part in value])
    if kind is dict:
        return (kind, *[(_constant(name), _walk(part, leaves)) for name, part in value.items()])
    if not isinstance(value, _CONTAINERS):
        leaves.append(value)
        return None
    if kind is torch.Size:  # a tuple of numbers, though pytree takes it as one value
        return _walk(tuple(value), leaves)
    parts, spec = pytree.tree_flatten(value, is_leaf=_is_leaf)  # a container of a class of its own
    leaves.extend(parts)
    names = map(_constant, value) if isinstance(value, dict) else ()
    return (_WITH_MORE if _has_more(value) else kind, spec, *names)


_WITH_MORE = "with attributes"


def _has_more(value: Any) -> bool:
    """Returns if a container has attributes beside its items, without which a program would make it anew."""
    items = value if isinstance(value, dict) else {}
    return any(
        items.get(name, _WITH_MORE) is not held and getattr(type(value), name, _WITH_MORE) is not held
        for name, held in getattr(value, "__dict__", {}).items()
    )


def _says_more(structure: Any) -> bool:
    """Returns if there is such a container in a call of this structure."""
    return isinstance(structure, tuple) and (_WITH_MORE in structure[:1] or any(map(_says_more, structure[1:])))


def first_parameter(module: nn.Module) -> tuple[dict[str, nn.Parameter | None], str] | None:
    """Where the first of `module.parameters()` is: the parameters of its module, and its name there."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            return module._parameters, name
    for child in module._modules.values():
        found = None if child is None else first_parameter(child)
        if found is not None:
            return found
    return None


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype that operators on a device are cast to, if they are."""
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else None


def call_site(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallSite:
    """Flatten a call. Two calls with equal keys may run one program, if its guards hold for both."""
    flat, spec, structure = _flatten((args, kwargs))
    tensors: list[torch.Tensor] = []
    numbers: list[int] = []
    handles: list[Any] = []
    leaves: list[Any] = []
    first, same = dict[int, int](), list[int]()
    place = first_parameter(module)
    state = None if place is None else place[0][place[1]]
    dtype, device = (None, None) if state is None else (state.dtype, state.device)
    if device is not None and device.type == "meta":
        device = None
    autocast = None if state is None else autocast_dtype(state.device.type)
    key: list[Any] = [structure, module.training, torch.is_grad_enabled(), autocast, dtype, device or _CPU]
    for leaf in flat:
        if isinstance(leaf, torch.Tensor):
            leaves.append(_slot("tensor", len(tensors)))
            tensors.append(leaf)
            small = tuple([size if size < 2 else None for size in leaf.shape])
            same.append(first.setdefault(id(leaf), len(same)))
            looks = (_class(type(leaf)), leaf.dtype, leaf.layout, leaf.device, leaf.requires_grad)
            key.append((*looks, small, same[-1]))
        elif type(leaf) is int:
            leaves.append(_slot("number", len(numbers)))
            numbers.append(leaf)
            key.append(int)
        elif isinstance(leaf, _CONSTANTS) or callable(leaf):
            leaves.append(leaf)
            key.append(_constant(leaf))
        else:
            known = next((i for i, handle in enumerate(handles) if handle is leaf), len(handles))
            if known == len(handles):
                handles.append(leaf)
            leaves.append(_slot("handle", known))
            key.append((type(leaf), known))
    return CallSite(tuple(key), tuple(leaves), spec, tensors, numbers, handles, device, tuple(same))


def _constant(value: Any) -> Any:
    """A constant by which calls are told apart: 1, 1.0 and True are three, and so are zeros of both signs."""
    if is_one_of_its_own(value):
        return Identity(value)
    return (type(value), repr(value)) if isinstance(value, (float, complex)) else (type(value), value)


def is_one_of_its_own(value: Any) -> bool:
    """Returns if a constant is told from others by what it is: code says which of its class are equal, and they may differ in
    all that this does not look at."""
    return isinstance(type(value).__eq__, types.FunctionType) and not isinstance(value, Position)


class Identity:
    """Equal to others of the same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Identity and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
