"""The calls that a model is verified with: one, one with other inputs in training mode, and the first one again.

What a model keeps from one call for the next shows in the later ones, as does a program that holds for one call only.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..planner.survey import Example


@dataclass(frozen=True)
class Call:
    """The inputs of one call, and the mode that the model is in."""

    name: str
    inputs: Example
    training: bool = False


class UnsuitableError(Exception):
    """What a call gives cannot be compared: it draws random numbers, or has results that are no numbers."""


def three_calls(first: Example, second: Example) -> Iterator[tuple[Call, ...]]:
    """Three calls, then others that are tried where the dense model cannot make these: with the inputs as they are, with the
    first ones, and without training mode."""
    for inputs, what in ((_turned(second), "other inputs"), (second, "more rows"), (first, "the same inputs")):
        for training, mode in ((True, "training"), (False, "eval")):
            yield (
                Call("call 1 (eval)", first),
                Call(f"call 2 ({what}, {mode})", inputs, training),
                Call("call 3 (call 1 again)", first),
            )


def real_call(model: nn.Module, example: Example) -> Example:
    """The example with real inputs in place of those without data."""
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None) or 100

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_meta:
            return leaf
        if leaf.is_floating_point():
            return torch.randn(leaf.shape, dtype=leaf.dtype)
        return torch.randint(0, vocabulary, leaf.shape)

    args, kwargs = pytree.tree_map(real, example)
    return tuple(args), kwargs


def larger_call(model: nn.Module, given: Example, call: Example, larger: Example) -> Example:
    """Another real call of the shapes of `larger`. Where `given` has values, its real `call` has them too, and rows of these are
    repeated: whatever they stand for, they stay in their range."""

    def rows(own: Any, known: Any, new: Any) -> Any:
        if not isinstance(own, torch.Tensor) or own.is_meta or not own.dim():
            return new
        taken = known.detach()[torch.arange(new.shape[0]) % known.shape[0]]
        return taken.requires_grad_(known.requires_grad)

    if pytree.tree_structure(call) == pytree.tree_structure(larger):  # a list may be longer
        args, kwargs = pytree.tree_map(rows, given, call, larger)
        larger = tuple(args), kwargs
    return real_call(model, larger)


def _turned(call: Example) -> Example:
    """The same values in another order along the last dim of every tensor."""

    def turn(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        return leaf.detach().flip(-1).requires_grad_(leaf.requires_grad)

    args, kwargs = pytree.tree_map(turn, call)
    return tuple(args), kwargs


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Raises UnsuitableError if random numbers are drawn inside."""
    before = _random_states()
    yield
    if before != _random_states():
        raise UnsuitableError("it draws random numbers")


def _random_states() -> tuple[Any, ...]:
    own = numpy.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), [str(part) for part in own]


class WithoutDropout(TorchFunctionMode):
    """Nothing is dropped: no two ranks, and no rank and the dense model, draw the same for what is cut."""

    DROPPING = frozenset(
        getattr(space, name)
        for space in (torch, functional)
        for name in dir(space)
        if re.fullmatch(r"((feature_)?(alpha_)?dropout_?)|dropout[123]d", name)
    )
    ATTENDING = frozenset({functional.scaled_dot_product_attention, functional.multi_head_attention_forward})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.DROPPING:
            return args[0] if args else kwargs["input"]
        if func in self.ATTENDING:
            args, kwargs = _undropped(func, args, kwargs)
        return func(*args, **kwargs)


_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p")


def _undropped(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    python = inspect.isfunction(func)
    names = tuple(inspect.signature(func).parameters) if python else _ATTENTION
    place = names.index("dropout_p")
    if place < len(args):
        return (*args[:place], 0.0, *args[place + 1 :]), kwargs
    return args, {**kwargs, "dropout_p": 0.0}
