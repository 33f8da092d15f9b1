"""Modules that share a cut parameter and belong to no unit: the model never calls them by itself, but somebody may."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ..axes.layout import Layout
from ..runtime.ranks import Ranks
from .whole import as_dense


class InPlace:
    """What takes the place of a `forward` looks like it to whoever asks how it is called."""

    __name__ = "forward"
    module: nn.Module
    own_forward: Any

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.dense_forward())

    def dense_forward(self) -> Callable[..., Any]:
        """What the module runs where it is dense."""
        return dense_forward(self.module, self.own_forward)


class WholeForward(InPlace):
    """Takes the place of such a module's `forward`: runs it with whole parameters, gathered for this one call."""

    def __init__(self, module: nn.Module, ranks: Ranks, layouts: Mapping[str, Sequence[Layout]]) -> None:
        self.module, self.ranks, self.layouts = module, ranks, dict(layouts)
        self.own_forward = module.__dict__.get("forward")

    def enter(self) -> None:
        """Take the place."""
        self.module.forward = self

    def leave(self) -> None:
        """Give it back."""
        give_back(self.module, self.own_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with as_dense(self.module, self.layouts, self.ranks):
            return self.dense_forward()(*args, **kwargs)


def dense_forward(module: nn.Module, own: Any) -> Callable[..., Any]:
    """The `forward` that a module would run: one of its own, or that of its class."""
    return own if own is not None else types.MethodType(type(module).forward, module)


def give_back(module: nn.Module, own: Any) -> None:
    """Let a module have the `forward` again that it had."""
    if own is None:
        del module.__dict__["forward"]
    else:
        module.forward = own
