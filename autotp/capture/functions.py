"""Opaque functions: Python functions that are called for real, and not traced through.

A kernel behind Python that reads values, or one of a user's own, cannot be traced; a loop over time that can be would make
the trace hold for one length only. While tracing, such a function is replaced where the model looks it up (a table, or
the namespace of the model's code) by one that becomes a single node; the program calls the function itself, on the rank's
slices. And where what a name stands for reads values, but a table has a function that computes the same and can be
traced, that one is.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..axes.function import FunctionRule
from ..outside.methods import function_of
from .calls import check_shapes
from .contract.values import is_cut
from .function_shapes import Shapes, argument_names
from .later import pairs
from .owners import package_of

# What is done instead of calling: (name of the operator rule, function, function for the result's shapes, args, kwargs).
Call: TypeAlias = Callable[[str, Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
# Rules of functions by the functions' names.
FunctionRules: TypeAlias = Mapping[str, FunctionRule]


@dataclass(frozen=True)
class FunctionTable:
    """A table of functions by name. `opaque` says of an entry the name of its operator rule and a function that gives
    results of the right shapes, or None if it is traced through; `traced` are, for names that the table does not have, a
    function to trace and the one that is called otherwise."""

    functions: MutableMapping[str, Callable[..., Any]]
    opaque: Callable[[Callable[..., Any]], tuple[str, Callable[..., Any]] | None]
    traced: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = field(default_factory=dict)


_tables: list[FunctionTable] = []


def register_table(table: FunctionTable) -> None:
    """Let the opaque functions of a table become nodes in every trace from now on."""
    _tables.append(table)


@contextmanager
def opaque_functions(call: Call, module: nn.Module, rules: FunctionRules) -> Iterator[None]:
    """While it lasts, `call` is called in this thread in place of every opaque function: those of every table, those with a
    rule that the code of a module knows, and those with a derivative of their own."""
    with _own_derivatives(call, rules):
        replaced = list(_replaced(call, (*_tables, *_namespaces(module, rules), *_attributes(module, rules))))
        added = [
            (table.functions, name, _in_this_thread(*pair))
            for table in _tables
            for name, pair in table.traced.items()
            if name not in table.functions
        ]
        try:
            for functions, name, _, replacement in replaced:
                functions[name] = replacement
            for functions, name, function in added:
                functions[name] = function
            yield
        finally:
            for functions, name, function, _ in replaced:
                _put_back(functions, name, function)
            for functions, name, _ in added:
                functions.pop(name, None)


def only_shapes(rule: str, function: Any, fake: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What is done with an opaque function on fake tensors that nobody traces."""
    return fake(*args, **kwargs)


def replace_attributes(call: Call, module: nn.Module, rules: FunctionRules) -> None:
    """Let `call` be called, from now on, in place of the functions with a rule that the modules in a copy hold themselves."""
    for functions, name, _, replacement in _replaced(call, _attributes(module, rules)):
        functions[name] = replacement


def _replaced(call: Call, tables: Iterable[FunctionTable]) -> Iterator[tuple[Any, str, Any, Callable[..., Any]]]:
    for table in tables:
        for name, function in list(table.functions.items()):
            if (own := table.opaque(function)) is not None:
                yield table.functions, name, function, _replacement(call, function, *own)


def _put_back(functions: MutableMapping[str, Any], name: str, function: Any) -> None:
    """Put a function where it was: in a mapping of several layers that may be below the one that is written to."""
    if type(functions) is not dict:
        functions.pop(name)
    if functions.get(name) is not function:
        functions[name] = function


def _in_this_thread(function: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    tracing = threading.get_ident()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (function if threading.get_ident() == tracing else otherwise)(*args, **kwargs)

    return chosen


def _replacement(call: Call, function: Callable[..., Any], rule: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    tracing = threading.get_ident()
    # What a partial function holds are arguments like any other: a tensor among them may be cut.
    partial = function if isinstance(function, functools.partial) else functools.partial(function)

    def opaque(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != tracing:
            return function(*args, **kwargs)
        return call(rule, partial.func, fake, (*partial.args, *args), {**partial.keywords, **kwargs})

    return opaque


def _namespaces(module: nn.Module, rules: FunctionRules) -> list[FunctionTable]:
    """The namespaces of the Python modules in which a module's classes are written."""
    kinds = {type(part) for _, part, _ in pairs(module, module)} if rules else set()
    names = {kind.__module__ for each in kinds for kind in each.__mro__}
    known = _known(rules)
    return [FunctionTable(vars(sys.modules[name]), known) for name in sorted(names) if name in sys.modules]


def _attributes(module: nn.Module, rules: FunctionRules) -> list[FunctionTable]:
    """The attributes of the modules in a module that are made (see `later`)."""
    known = _known(rules)
    return [FunctionTable(vars(part), known) for _, part, _ in pairs(module, module)] if rules else []


def _known(rules: FunctionRules) -> Callable[[Any], tuple[str, Callable[..., Any]] | None]:
    def known(function: Any) -> tuple[str, Callable[..., Any]] | None:
        inner = function.func if isinstance(function, functools.partial) else function
        rule = rule_of(inner, rules)
        return None if rule is None else (f"function.{inner.__name__}", Shapes(rule, inner))

    return known


def rule_of(function: Any, rules: FunctionRules) -> FunctionRule | None:
    """The rule for a function, None if there is none."""
    rule = rules.get(function.__name__) if inspect.isfunction(function) else None
    return rule if rule is not None and rule.owner == package_of(function) else None


@contextmanager
def _own_derivatives(call: Call, rules: FunctionRules) -> Iterator[None]:
    """Let every `torch.autograd.Function` stay opaque: a trace of what it computes would lose its derivative."""
    tracing, original = threading.get_ident(), torch.autograd.Function.__dict__["apply"]

    inner = function_of(original)

    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        function = _function_of(kind, inner)
        if threading.get_ident() != tracing:
            return function(*args, **kwargs)
        rule, owner = rules.get(kind.__name__), package_of(kind)
        name = kind.__name__ if rule is not None and rule.owner == owner else f"{owner}:{kind.__qualname__}"
        return call(f"function.{name}", function, function, args, kwargs)

    setattr(torch.autograd.Function, "apply", classmethod(apply))  # noqa: B010
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", original)  # noqa: B010


def _function_of(kind: Any, apply: Callable[..., Any]) -> Callable[..., Any]:
    """`kind.apply` as a function with the name of the class and the arguments of its `forward`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # it knows the method of a class, and not what is behind it
            return kind.apply(*args, **kwargs)
        return apply(kind, *args, **kwargs)

    parameters = list(inspect.signature(kind.forward).parameters.values())
    own_context = kind.setup_context is torch.autograd.Function.setup_context
    run.__name__ = kind.__name__
    run.__dict__["__signature__"] = inspect.Signature(parameters[1:] if own_context else parameters)
    run.__dict__[_KIND] = kind
    return run


_KIND = "autotp_kind"


def derivative_of(function: Any) -> type | None:
    """The `torch.autograd.Function` that a function applies; None for one that a trace has not made."""
    return getattr(function, "__dict__", {}).get(_KIND)


def applying(kind: type) -> Callable[..., Any]:
    """A function that applies a `torch.autograd.Function`, as those that traces make."""
    return _function_of(kind, function_of(torch.autograd.Function.__dict__["apply"]))


class OpaqueFunction:
    """The target of an opaque function's node: the function with the constants of its call filled in.

    `operator` names its rule. The node's arguments are named by `argument_names`; the last one, `shapes`, says what sizes
    the results must have. `constants` are the other arguments of the call, by name: `leaves` of its arguments, flat, of which
    those at `places` are the node's.
    """

    def __init__(
        self,
        operator: str,
        function: Callable[..., Any],
        leaves: Sequence[Any],
        places: Sequence[int],
        spec: pytree.TreeSpec,
    ) -> None:
        names = argument_names(function, [path for path, _ in pytree.tree_flatten_with_path(spec.unflatten(leaves))[0]])
        self.__name__ = f"{operator.replace('.', '_')}_{getattr(function, '__name__', 'function')}"
        self.operator, self.argument_names = operator, (*(names[place] for place in places), "shapes")
        self.constants = {
            name: leaf for i, (name, leaf) in enumerate(zip(names, leaves, strict=True)) if i not in places
        }
        self.function, self.leaves, self.places, self.spec = function, tuple(leaves), tuple(places), spec

    def __call__(self, *values: Any) -> list[torch.Tensor]:
        """Run the function; gives the tensors of its result."""
        *given, shapes = values
        # What the function keeps for its backward are parts there, too.
        filled = list(self.leaves)
        for place, held in zip(self.places, given, strict=True):
            filled[place] = held.as_subclass(torch.Tensor) if is_cut(held) else held
        args, kwargs = pytree.tree_unflatten(filled, self.spec)
        result = self.function(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        check_shapes(self.__name__, tensors, shapes)
        return tensors
