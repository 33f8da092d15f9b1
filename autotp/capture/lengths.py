"""Which fake tensors lie in memory without gaps, and in which order, whatever their sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor

Size: TypeAlias = int | torch.SymInt
# A number, and the symbols that it is multiplied with.
Product: TypeAlias = tuple[int, Counter[sympy.Symbol]]


class Lengths:
    """What is plain to see of the sizes of one environment."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self._products: dict[sympy.Basic, Product | None] = {}

    def product(self, size: Size) -> Product | None:
        """A size as a product; None for one that may be none, or is something else."""
        if isinstance(size, int):
            return (size, Counter()) if size > 0 else None
        expression = size.node.expr
        if expression not in self._products:
            self._products[expression] = self._product_of(expression)
        return self._products[expression]

    def _product_of(self, expression: sympy.Basic) -> Product | None:
        number, symbols = 1, Counter[sympy.Symbol]()
        for factor, power in expression.as_powers_dict().items():
            if factor.is_Integer and power == 1 and factor > 0:
                number *= int(factor)
            elif factor.is_Symbol and power.is_Integer and power > 0 and self._is_length(factor):
                symbols[factor] += int(power)
            else:
                return None
        return number, symbols

    def _is_length(self, symbol: sympy.Symbol) -> bool:
        return not self.env.is_unbacked_symint(symbol) and bool(self.env.var_to_range[symbol].lower >= 2)

    def products(self, sizes: Sequence[Size]) -> Product | None:
        """The product of sizes."""
        found = [self.product(size) for size in sizes]
        if None in found:
            return None
        known = [each for each in found if each is not None]
        return math.prod(number for number, _ in known), sum((symbols for _, symbols in known), Counter())

    def dense(self, sizes: Sequence[Size]) -> list[Size] | None:
        """The strides of a tensor of these sizes that lies in order and without gaps."""
        if any(self.product(size) is None for size in sizes):
            return None
        strides: list[Size] = [1] * len(sizes)
        for dim in range(len(sizes) - 1, 0, -1):
            strides[dim - 1] = strides[dim] * sizes[dim]
        return strides

    def is_dense(self, tensor: Any) -> bool:
        """Returns if a tensor lies in order and without gaps."""
        if type(tensor) is not FakeTensor or tensor.layout is not torch.strided:
            return False
        strides = self.dense(tensor.shape)
        return strides is not None and all(map(same, tensor.stride(), strides))

    def viewed(self, tensor: Any, sizes: Sequence[Size]) -> list[Size] | None:
        """The strides of a view of these sizes, as many elements as the tensor has, where each of its dims stays, is taken apart
        or is joined with its neighbours; None where that is not plain, or a size is one."""
        old, strides = list(tensor.shape), list(tensor.stride())
        if tensor.layout is not torch.strided or any(same(size, 1) for size in (*old, *sizes)):
            return None
        new, found = list(sizes), list[Size]()
        while old and new:
            joined, parts, innermost = [old.pop()], [new.pop()], strides.pop()
            stride = innermost
            while (difference := self._compared(joined, parts)) != 0:
                if difference is None or not (new if difference > 0 else old):
                    return None
                if difference > 0:
                    parts.append(new.pop())
                elif (further := self.product(strides[-1])) is None or further != self.products((joined[-1], stride)):
                    return None
                else:
                    joined.append(old.pop())
                    stride = strides.pop()
            for size in parts:
                found.append(innermost)
                innermost = innermost * size
        return found[::-1] if not (old or new) else None

    def _compared(self, some: Sequence[Size], others: Sequence[Size]) -> int | None:
        """Whether the product of sizes is that of others (0), several times as large (1) or a part of it (-1); else None."""
        one, other = self.products(some), self.products(others)
        if one is None or other is None:
            return None
        if one == other:
            return 0
        return 1 if _is_multiple(one, other) else -1 if _is_multiple(other, one) else None

    def order(self, tensor: Any) -> list[int] | None:
        """The dims of a tensor from the outermost to the innermost; None where that is not plain, or a size is one."""
        if type(tensor) is not FakeTensor or tensor.layout is not torch.strided or not tensor.dim():
            return None
        found = [self.product(stride) for stride in tensor.stride()]
        if None in found or any(same(size, 1) or self.product(size) is None for size in tensor.shape):
            return None
        strides = [each for each in found if each is not None]
        dims = sorted(range(tensor.dim()), key=lambda dim: (strides[dim][1].total(), strides[dim][0]), reverse=True)
        return dims if all(_is_multiple(strides[a], strides[b]) for a, b in pairwise(dims)) else None


def _is_multiple(large: Product, small: Product) -> bool:
    """Returns if a product is another one, several times."""
    return large != small and not small[1] - large[1] and not large[0] % small[0]


def same(one: Any, other: Any) -> bool:
    """Returns if two sizes are the same for every call."""
    if isinstance(one, int) or isinstance(other, int):
        return isinstance(one, int) and isinstance(other, int) and one == other
    return bool(one.node.expr == other.node.expr)
