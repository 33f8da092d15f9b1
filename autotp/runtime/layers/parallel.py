"""Parallel layers: what a rank computes with its parts of a linear layer or a table. The collectives around them are nodes of
the program, which calls `local_forward`.

A layer is kept on the module whose parameters it computes with, and the module stays what it is, of its own class: whoever else
calls it reads whole weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...axes.layout import Layout, factors_of, is_even, is_padded, ordered, parts_of
from ..collectives.slices import keep_padding_zero
from ..groups.ranks import Ranks
from .products import PLAIN, linear, may_try

LAYER = "_autotp_layer"  # the attribute of a module that names its parallel layer


class ParallelLayer:
    """Shared by all parallel layers: the layouts of the module's parameters and this rank's place.

    `transposed` layers keep their weight as (in, out), the others as (out, in). `apart` says that no other rank holds any of
    this part of the weight, and so computes anything that must be equal to the bit.
    """

    def __init__(self, module: nn.Module, ranks: Ranks, layouts: dict[str, Sequence[Layout]], transposed: bool) -> None:
        self.module, self.ranks, self.layouts, self.transposed = module, ranks, layouts, transposed
        self.padded = frozenset(name for name, own in layouts.items() if any(map(is_padded, own)))
        self.apart = _is_apart(layouts.get("weight", ()), ranks.size)
        self.multiply = linear if self.apart and may_try() else PLAIN
        self.is_plain = not self.padded and not transposed

    def local(self, name: str) -> torch.Tensor | None:
        """A parameter as it enters the computation: the padding gets no gradient."""
        parameter = self.module._parameters.get(name)
        if parameter is None or name not in self.padded:
            return parameter
        return keep_padding_zero(parameter, self.layouts[name], self.ranks.rank)

    def product(self, value: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The value times the weight, plus the bias."""
        weight = self.local("weight")
        assert weight is not None
        return self.multiply(value, weight.t() if self.transposed else weight, bias)


def layer_of(module: nn.Module) -> ParallelLayer | None:
    """The parallel layer of a module, None if it has none."""
    layer: ParallelLayer | None = module.__dict__.get(LAYER)
    return layer


def remove_layer(module: nn.Module) -> None:
    """Take a module's parallel layer from it; its parameters stay this rank's."""
    module.__dict__.pop(LAYER, None)


def _is_apart(layouts: Sequence[Layout], size: int) -> bool:
    over = frozenset(factor for layout in layouts for factor in factors_of(layout))
    return parts_of(ordered(over)) == size and all(is_even(layout) for layout in layouts if factors_of(layout))


class ColumnParallelLinear(ParallelLayer):
    """Holds some of the outputs; the input is whole, the output this rank's slice."""

    def local_forward(self, value: torch.Tensor) -> torch.Tensor:
        if self.is_plain:  # each step of Python counts where a token is written
            held: dict[str, Any] = self.module._parameters
            return self.multiply(value, held["weight"], held.get("bias"))
        return self.product(value, self.local("bias"))


class RowParallelLinear(ParallelLayer):
    """Holds some of the inputs; the input is this rank's slice, the output a partial sum without the bias.

    The program reduces the sum, together with others where it can, and adds the bias once after that.
    """

    def local_forward(self, value: torch.Tensor) -> torch.Tensor:
        held: dict[str, Any] = self.module._parameters
        return self.multiply(value, held["weight"], None) if self.is_plain else self.product(value)


class VocabParallelEmbedding(ParallelLayer):
    """Holds some of the rows; the program looks them up."""


class VocabParallelHead(ColumnParallelLinear):
    """Holds some of the outputs; the program gathers them."""
