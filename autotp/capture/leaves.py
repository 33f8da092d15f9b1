"""The leaves of a call. Every call of a block, and every operator between blocks, is looked at while a model is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils import _pytree as pytree


def leaves_of(tree: Any) -> list[Any]:
    """What `pytree.tree_leaves` gives, in its order; plain tuples, lists and dicts are opened without asking it."""
    found: list[Any] = []
    _add((tree,), found)
    return found


def _add(parts: Iterable[Any], found: list[Any]) -> None:
    for part in parts:
        kind = type(part)
        if kind is tuple or kind is list:
            _add(part, found)
        elif kind is dict:
            _add(part.values(), found)
        elif kind in pytree.SUPPORTED_NODES or issubclass(kind, tuple):
            found += pytree.tree_leaves(part)
        else:
            found.append(part)
