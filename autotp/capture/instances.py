"""Instances of dataclasses among a unit's results: a program makes them anew from what they hold, as the unit's own code does."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


class _Instance:
    """Stands for an instance in a tree: what it holds are the parts, and the tree gives the instance back."""

    def __init__(self, value: Any) -> None:
        self.kind, self.held = type(value), {name: opened(part) for name, part in vars(value).items()}


def _flatten(instance: _Instance) -> tuple[list[Any], Any]:
    return list(instance.held.values()), (instance.kind, tuple(instance.held))


def _unflatten(values: Any, context: Any) -> Any:
    kind, names = context
    made = object.__new__(kind)
    vars(made).update(zip(names, values, strict=True))
    return made


pytree.register_pytree_node(_Instance, _flatten, _unflatten)


def opened(tree: Any) -> Any:
    """A tree in which instances of dataclasses are parts of the tree, and no leaves."""
    return pytree.tree_map(lambda leaf: _Instance(leaf) if is_instance(leaf) else leaf, tree)


def is_instance(value: Any) -> bool:
    """Returns if a value is an instance of a dataclass that holds all it has in plain attributes, and that no tree knows."""
    kind = type(value)
    return (
        dataclasses.is_dataclass(kind)
        and kind.__new__ is object.__new__  # a dict, or an error, holds more
        and not isinstance(value, (torch.Tensor, nn.Module))
        and kind not in pytree.SUPPORTED_NODES
        and hasattr(value, "__dict__")
        and not any("__slots__" in vars(each) for each in kind.__mro__)
    )
