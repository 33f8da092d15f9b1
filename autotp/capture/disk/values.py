"""Arguments of nodes and constants of calls as data: JSON, with the name of its kind before what JSON has no form for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..opaque import Position
from ..signature import Slot
from .names import UnnamedError

_NAMED: Mapping[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_MANY: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "tuple": tuple,
    "list": list,
    "size": torch.Size,
    "slice": lambda parts: slice(*parts),
    "dict": lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "slot": lambda parts: Slot(*parts),
    "position": lambda parts: Position(*parts),
    "complex": lambda parts: complex(*parts),
    "float": lambda parts: float.fromhex(*parts),
    "device": lambda parts: torch.device(*parts),
}


def value_data(value: Any, nodes: Mapping[torch.fx.Node, int] | None = None) -> Any:
    """A value as data, in which a node is its number. Raises UnnamedError for what is not known here."""
    if value is None or type(value) in (bool, int, str):
        return value
    if value is ...:
        return ["..."]
    if isinstance(value, torch.fx.Node):
        return ["node", (nodes or {})[value]]
    for name, kind in _NAMED.items():
        if type(value) is kind:
            return [name, str(value).removeprefix("torch.")]
    name, parts = _taken_apart(value)
    return [name, *(value_data(part, nodes) for part in parts)]


def _taken_apart(value: Any) -> tuple[str, Sequence[Any]]:
    kind = type(value)
    if kind is float:
        return "float", [value.hex()]
    if kind is complex:
        return "complex", [value.real, value.imag]
    if kind is torch.device:
        return "device", [str(value)]
    if kind is slice:
        return "slice", [value.start, value.stop, value.step]
    if kind is Slot:
        return "slot", [value.kind, value.number]
    if kind is Position:
        return "position", [value.value, value.number]
    if kind is torch.Size:
        return "size", [*value]
    if kind in (tuple, list) or (isinstance(value, list) and kind.__module__.startswith("torch.fx")):
        return ("tuple" if kind is tuple else "list"), value
    if kind is dict or (isinstance(value, dict) and kind.__module__.startswith("torch.fx")):
        return "dict", [part for item in value.items() for part in item]
    raise UnnamedError


def value_of(data: Any, nodes: Sequence[torch.fx.Node] = ()) -> Any:
    """The value of some data."""
    if not isinstance(data, list):
        return data
    name, *parts = data
    if name == "node":
        return nodes[parts[0]]
    if name == "...":
        return ...
    if name in _NAMED:
        found = getattr(torch, parts[0])
        if type(found) is not _NAMED[name]:
            raise UnnamedError
        return found
    return _MANY[name]([value_of(part, nodes) for part in parts])
