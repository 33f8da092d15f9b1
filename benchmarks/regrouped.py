"""A dense model whose sums are taken in another order: what every difference in rounding amounts to after some steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class Regrouped(TorchFunctionMode):
    """Inside, the sums of every linear layer are those of shuffled groups of terms: over inputs forward, over outputs and, for
    the gradient of a weight, over rows backward. Nothing else differs, and nothing would in exact arithmetic."""

    def __init__(self, seed: int, groups: int) -> None:
        super().__init__()
        self.seed, self.groups = seed, groups

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            value, weight, *bias = args
            product = _Product.apply(value, weight, self.seed, self.groups)
            return product + bias[0] if bias and bias[0] is not None else product
        if func is torch.addmm:
            bias, value, weight = args
            return bias + _Product.apply(value, weight.t(), self.seed, self.groups)
        return func(*args, **(kwargs or {}))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor, seed: int, groups: int) -> torch.Tensor:
        ctx.save_for_backward(value, weight)
        ctx.order = seed, groups
        return _summed(value, weight.t(), seed, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,), (value, weight) = gradients, ctx.saved_tensors
        of_weight = _summed(gradient.flatten(0, -2).t(), value.flatten(0, -2), *ctx.order)
        return _summed(gradient, weight, *ctx.order), of_weight, None, None


def _summed(value: torch.Tensor, matrix: torch.Tensor, seed: int, groups: int) -> torch.Tensor:
    """`value @ matrix`, group by group."""
    order = torch.randperm(matrix.shape[0], generator=torch.Generator().manual_seed(seed))
    parts = [value[..., part] @ matrix[part] for part in order.chunk(groups)]
    return torch.stack(parts).sum(0)
