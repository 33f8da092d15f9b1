"""The `forward` that a module had, and what takes its place."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from torch import nn


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


def dense_forward(module: nn.Module, own: Any) -> Callable[..., Any]:
    """The `forward` that a module would run: one of its own, or that of its class."""
    return own if own is not None else types.MethodType(type(module).forward, module)


def give_back(module: nn.Module, own: Any) -> None:
    """Let a module have the `forward` again that it had."""
    if own is None:
        del module.__dict__["forward"]
    else:
        module.forward = own
