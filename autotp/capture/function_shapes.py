"""What a function with a rule returns, found without tracing it, and the names of what it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..axes.function import FunctionRule, Part
from ..errors import TraceError
from .capturing import known_so_far
from .sizes import hints_of


@dataclass(frozen=True)
class Shapes:
    """What a function with a rule returns, as fake tensors.

    Which results there are, their types and the order of their strides are found by running it once on fake tensors of
    fixed sizes (a kernel's reference in its place, where it has one); their sizes are those of the rule's letters.
    """

    rule: FunctionRule
    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results, spec = self._results(args, kwargs)
        sizes = self._sizes(args, kwargs)
        device = next(leaf.device for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        parts = iter(self.rule.results)
        shaped = [_like(leaf, next(parts), sizes, device) if isinstance(leaf, _Result) else leaf for leaf in results]
        return pytree.tree_unflatten(shaped, spec)

    def _results(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
        """The results for these sizes. Every block calls the function anew, which may run thousands of operators."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        given = (_as_given(leaf) if isinstance(leaf, torch.Tensor) else (type(leaf), leaf) for leaf in leaves)
        call, known = (self.function, spec, *given, torch.is_grad_enabled()), known_so_far()
        try:
            if call in known:
                found: tuple[list[Any], pytree.TreeSpec] = known[call]
                return found
        except TypeError:  # of a constant that nothing tells from another one
            return self._run(args, kwargs)
        known[call] = found = self._run(args, kwargs)
        return found

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
        fixed_args, fixed_kwargs = pytree.tree_map_only(torch.Tensor, _fixed, (args, kwargs))
        results, spec = pytree.tree_flatten(inspect.unwrap(self.function)(*fixed_args, **fixed_kwargs))
        return [_result(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in results], spec

    def _sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Part, Any]:
        """The size of every part of a dim that a tensor of the call has; equal letters are equal from here on."""
        sizes: dict[Part, Any] = {}
        leaves = pytree.tree_flatten_with_path((args, kwargs))[0]
        names = argument_names(self.function, [path for path, _ in leaves])
        for name, (_, value) in zip(names, leaves, strict=True):
            own = self.rule.arguments.get(name, ())
            for part, size in zip(own, value.shape if isinstance(value, torch.Tensor) else (), strict=False):
                # Comparing two sizes makes their being equal a condition of the trace.
                if sizes.setdefault(part, size) != size and sizes[part] == 1:
                    sizes[part] = size
        return sizes


@dataclass(frozen=True)
class _Result:
    """A tensor that the function returns, with the order of its strides."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype


def _result(tensor: torch.Tensor) -> _Result:
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return _Result(tuple(tensor.shape), tuple(order), tensor.dtype)


def _as_given(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(hints_of(tensor)), tensor.dtype, tensor.device


def _fixed(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(hints_of(tensor), dtype=tensor.dtype, device=tensor.device)


def _like(result: _Result, parts: Sequence[Part], sizes: Mapping[Part, Any], device: torch.device) -> torch.Tensor:
    """A result with the sizes that its letters have in the call, in the order of its strides."""
    if len(parts) != len(result.shape):
        raise TraceError(f"the rule of a function gives a result of {len(parts)} dims where it has {len(result.shape)}")
    shape = [sizes.get(part, size) for part, size in zip(parts, result.shape, strict=True)]
    made = torch.empty([shape[dim] for dim in result.order], dtype=result.dtype, device=device)
    return made.permute([result.order.index(dim) for dim in range(len(shape))])


def argument_names(function: Callable[..., Any], paths: Sequence[Any]) -> tuple[str, ...]:
    """The names of the leaves of a call's (args, kwargs): a parameter's name, and where in the argument the leaf is."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def name(path: Any) -> str:
        (kind, argument), rest = path[:2], path[2:]
        if kind.idx == 1:
            return str(argument.key) + pytree.keystr(rest)
        return (named[argument.idx] if argument.idx < len(named) else f"*{argument.idx}") + pytree.keystr(rest)

    return tuple(map(name, paths))
