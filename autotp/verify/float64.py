"""Arithmetic in float64 wherever a model's code asks for less, so that what differs is an error and no rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


class Float64(TorchFunctionMode):
    """Every cast to a smaller floating type becomes one to float64, so that only arithmetic order is left to differ."""

    SMALLER = frozenset({torch.float32, torch.float16, torch.bfloat16})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.backward:
            with self:  # torch puts a mode aside in its functions, and a checkpoint runs the model again in this one
                return _backward(*args, **(kwargs or {}))

        def widen(value: Any) -> Any:
            return torch.float64 if isinstance(value, torch.dtype) and value in self.SMALLER else value

        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            func = torch.Tensor.double
        if func in (torch.tensor, torch.full) and any(isinstance(leaf, float) for leaf in pytree.tree_leaves(args)):
            kwargs = {"dtype": torch.float64, **(kwargs or {})}
        if any(isinstance(leaf, torch.dtype) for leaf in pytree.tree_leaves((args, kwargs))):
            args, kwargs = pytree.tree_map(widen, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _backward(loss: torch.Tensor, gradient: torch.Tensor | None = None, **settings: Any) -> None:
    """`loss.backward(...)` from its edge of the graph: of what is no tensor torch puts no mode aside."""
    gradient = torch.ones_like(loss) if gradient is None else gradient
    torch.autograd.backward(get_gradient_edge(loss), gradient, **settings)
