"""Opaque functions: Python functions that a model looks up in a table while it runs and that are called for real.

A kernel behind Python that reads values, or one of a user's own, cannot be traced. While tracing, its entry in the table
is replaced by one that becomes a single node; the program calls the function itself, on the rank's slices. And where what a
name stands for reads values, but a table has a function that computes the same and can be traced, that one is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from .calls import check_shapes

# What is done instead of calling: (name of the operator rule, function, function for the result's shapes, args, kwargs).
Call: TypeAlias = Callable[[str, Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class FunctionTable:
    """A table of functions by name. `opaque` says of an entry the name of its operator rule and a function that gives
    results of the right shapes, or None if it is traced through; `traced` are functions for names that the table does
    not have."""

    functions: MutableMapping[str, Callable[..., Any]]
    opaque: Callable[[Callable[..., Any]], tuple[str, Callable[..., Any]] | None]
    traced: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


_tables: list[FunctionTable] = []
_lock = threading.RLock()


def register_table(table: FunctionTable) -> None:
    """Let the opaque functions of a table become nodes in every trace from now on."""
    _tables.append(table)


@contextmanager
def opaque_functions(call: Call) -> Iterator[None]:
    """While it lasts, `call` is called in place of every opaque function of every table. One at a time: tables are global."""
    with _lock:
        replaced = [
            (table.functions, name, function, _replacement(call, function, *own))
            for table in _tables
            for name, function in list(table.functions.items())
            if (own := table.opaque(function)) is not None
        ]
        added = [(table.functions, *entry) for table in _tables for entry in table.traced.items()]
        added = [(functions, name, function) for functions, name, function in added if name not in functions]
        try:
            for functions, name, _, replacement in replaced:
                functions[name] = replacement
            for functions, name, function in added:
                functions[name] = function
            yield
        finally:
            for functions, name, function, _ in replaced:
                functions[name] = function
            for functions, name, _ in added:
                functions.pop(name, None)


def _replacement(call: Call, function: Callable[..., Any], rule: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    def opaque(*args: Any, **kwargs: Any) -> Any:
        return call(rule, function, fake, args, kwargs)

    return opaque


class OpaqueFunction:
    """The target of an opaque function's node: the function with the constants of its call filled in.

    The node's arguments are named by `names`; the last one, `shapes`, says what sizes the results must have.
    """

    def __init__(
        self, rule: str, function: Callable[..., Any], names: tuple[str, ...], fill: Callable[[list[Any]], Any]
    ) -> None:
        self.__name__ = f"{rule}_{getattr(function, '__name__', 'function')}"
        self.argument_names = (*names, "shapes")
        self._function, self._fill = function, fill

    def __call__(self, *values: Any) -> list[torch.Tensor]:
        """Run the function; gives the tensors of its result."""
        *given, shapes = values
        args, kwargs = self._fill(given)
        result = self._function(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        check_shapes(self.__name__, tensors, shapes)
        return tensors
