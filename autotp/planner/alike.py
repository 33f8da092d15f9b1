"""Which units are one problem: those whose graphs say the same to a planner.

Blocks differ in what their Python reads, the length of a window or the name under which they keep something, where their
operators do not.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..axes.annotation import annotation
from ..capture.calls import OF_OBJECTS
from ..capture.traced import Traced


def described(traced: Traced, path: str, used_outside: Mapping[str, str]) -> Hashable:
    """All that a plan of the unit at a path depends on: its graph, which of its results are read, and with which operators others
    use its parameters. Units of which it is equal are planned as one."""
    numbers = {node: number for number, node in enumerate(traced.graph.nodes)}

    def of(node: torch.fx.Node) -> Hashable:
        noted = annotation(node)
        writes = None if noted.writes is None else tuple(numbers.get(each) for each in noted.writes)
        given = _plain((node.args, node.kwargs), numbers, words=node.target not in OF_OBJECTS)
        return node.op, node.name, node.target, given, _sizes(node.meta.get("val")), replace(noted, writes=None), writes

    prefix = f"{path}." if path else ""
    used = {name.removeprefix(prefix): way for name, way in used_outside.items() if name.startswith(prefix)}
    return tuple(map(of, numbers)), frozenset(used.items()), traced.unread


def _plain(value: object, numbers: Mapping[torch.fx.Node, int], words: bool) -> Hashable:
    """An argument with nodes by their numbers. What an object is told in words says nothing of a tensor."""
    if isinstance(value, torch.fx.Node):
        return numbers[value]
    if isinstance(value, (tuple, list)):
        return type(value).__name__, *(_plain(each, numbers, words) for each in value)
    if isinstance(value, dict):
        return "dict", *((name, _plain(each, numbers, words)) for name, each in value.items())
    if isinstance(value, slice):
        return "slice", *(_plain(each, numbers, words) for each in (value.start, value.stop, value.step))
    return "" if isinstance(value, str) and not words else (type(value), str(value))


def _sizes(value: object) -> Hashable:
    """The types and sizes of a node's tensors."""
    if isinstance(value, torch.Tensor):
        sizes: tuple[Any, ...] = tuple(value.shape)
        return value.dtype, *(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes)
    return tuple(map(_sizes, value)) if isinstance(value, (tuple, list)) else str(value)
