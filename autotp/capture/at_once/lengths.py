"""Which fake tensors lie in memory without gaps, and in which order, whatever their sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._sympy.functions import Max

Size: TypeAlias = int | torch.SymInt
# A number, and what it is multiplied with: symbols, and what cannot be taken apart.
Product: TypeAlias = tuple[int, Counter[sympy.Expr]]


class Lengths:
    """What is plain to see of the sizes of one environment."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self._products: dict[sympy.Expr, tuple[Product, int] | None] = {}
        self._least: dict[sympy.Expr, int | None] = {}
        self._version = 0

    def product(self, size: Size) -> Product | None:
        """A size as a product; None for one that may be none or one, but for the number one itself."""
        found = self._product_and_least(size)
        return found[0] if found is not None and (found[1] > 1 or same(size, 1)) else None

    def _product_and_least(self, size: Size) -> tuple[Product, int] | None:
        """A size as a product, with the smallest that it may be; None where that is not known."""
        if isinstance(size, int):
            return ((size, Counter()), size) if size > 0 else None
        if self._version != self.env._version_counter:  # more is known of how large symbols are
            self._version = self.env._version_counter
            self._products.clear()
            self._least.clear()
        expression = size.node.expr
        if expression not in self._products:
            self._products[expression] = self._found(expression)
        return self._products[expression]

    def _found(self, expression: sympy.Expr) -> tuple[Product, int] | None:
        number, others, least = 1, Counter[sympy.Expr](), 1
        for factor, power in expression.as_powers_dict().items():
            if factor.is_Integer and power == 1 and factor > 0:
                number *= int(factor)
            elif power == 1 and (inner := self._larger_than_one(factor)) is not None:
                number, others, least = number * inner[0][0], others + inner[0][1], least * inner[1]
            elif power.is_Integer and power > 0 and (smallest := self._least_of(factor)) is not None:
                others[factor] += int(power)
                least *= smallest ** int(power)
            else:
                return None
        return (number, others), number * least

    def _larger_than_one(self, factor: sympy.Expr) -> tuple[Product, int] | None:
        """Of the larger of one and a size the size, where this is never none."""
        if not isinstance(factor, Max) or len(factor.args) != 2 or factor.args[0] != 1:
            return None
        found = self._found(factor.args[1])
        return found if found is not None and found[1] else None

    def _least_of(self, factor: sympy.Expr) -> int | None:
        """The smallest that a factor may be; None for one of data, or less than none."""
        if factor not in self._least:
            is_read = any(map(self.env.is_unbacked_symint, factor.free_symbols))
            lower = None if is_read else self.env.bound_sympy(factor).lower
            self._least[factor] = int(lower) if lower is not None and lower.is_Integer and lower >= 0 else None
        return self._least[factor]

    def products(self, sizes: Sequence[Size]) -> Product | None:
        """The product of sizes, any of which may be none."""
        found = [each and each[0] for each in map(self._product_and_least, sizes)]
        if None in found:
            return None
        known = [each for each in found if each is not None]
        return math.prod(number for number, _ in known), sum((symbols for _, symbols in known), Counter())

    def are_known(self, sizes: Sequence[Size]) -> bool:
        """Returns if sizes are numbers other than none, or depend on the call's sizes alone."""
        return all(self._product_and_least(size) is not None for size in sizes)

    def dense(self, sizes: Sequence[Size]) -> list[Size] | None:
        """The strides of a tensor of these sizes that lies in order and without gaps."""
        if not self.are_known(sizes):
            return None
        strides: list[Size] = [1] * len(sizes)
        for dim in range(len(sizes) - 1, 0, -1):
            strides[dim - 1] = strides[dim] * self._at_least_one(sizes[dim])
        return strides

    def _at_least_one(self, size: Size) -> Size:
        """A size, or one if it is none: as it counts in a stride."""
        found = self._product_and_least(size)
        if isinstance(size, int) or (found and found[1] and all(factor.is_Symbol for factor in found[0][1])):
            return size
        counted: Size = torch.sym_max(size, 1)
        return counted

    def is_dense(self, tensor: Any, *, ones: bool = True) -> bool:
        """Returns if a tensor lies in order and without gaps; where dims of size one lie does not count without `ones`."""
        if type(tensor) is not FakeTensor or tensor.layout is not torch.strided:
            return False
        pairs = zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True)
        if tensor._has_symbolic_sizes_strides:
            return self._are_in_order(pairs, ones)
        expected = 1
        for size, stride in pairs:
            if not size or not (stride == expected or (size == 1 and not ones)):
                return False
            expected *= size
        return True

    def _are_in_order(self, pairs: Iterable[tuple[Size, Size]], ones: bool) -> bool:
        expected: Product = 1, Counter()
        for size, stride in pairs:
            found, own = self._product_and_least(size), self._product_and_least(stride)
            if found is None or not ((own and own[0] == expected) or (same(size, 1) and not ones)):
                return False
            number, factors = found[0]
            if isinstance(size, torch.SymInt) and not found[1]:  # none counts as one
                number, factors = 1, Counter({Max(1, size.node.expr): 1})
            expected = expected[0] * number, expected[1] + factors
        return True

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
                elif (further := self.products(strides[-1:])) is None or further != self.products((joined[-1], stride)):
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

    def common(self, shapes: Sequence[Sequence[Size]]) -> list[Size] | None:
        """The sizes of what is made of tensors of several ones, element by element; None where that is not plain. It asks if two
        sizes are equal where such an operator has to."""
        found: list[Size] = []
        for dim in range(1, max(map(len, shapes)) + 1):
            size: Size | None = 1
            for other in [shape[-dim] for shape in shapes if len(shape) >= dim]:
                size = None if size is None else self._both(size, other)
            if size is None:
                return None
            found.append(size)
        return found[::-1]

    def _both(self, one: Size, other: Size) -> Size | None:
        if same(one, other) or same(other, 1):
            return one
        if same(one, 1):
            return other
        if isinstance(one, int) or isinstance(other, int) or self.product(one) is None or self.product(other) is None:
            return None
        return one if one.node.hint == other.node.hint and bool(one == other) else None

    def compared(self, one: Size, other: Size) -> int | None:
        """Whether a size, or a stride, is larger than another one (1), the same (0) or smaller (-1); None where it may be any."""
        first, second = self._product_and_least(one), self._product_and_least(other)
        if first is None or second is None or not (first[1] and second[1]):
            return None
        if first[0] == second[0]:
            return 0
        return 1 if self._is_larger(first[0], second[0]) else -1 if self._is_larger(second[0], first[0]) else None

    def _is_larger(self, large: Product, small: Product) -> bool:
        least = large[0]
        for factor in (large[1] - small[1]).elements():
            least *= self._least_of(factor) or 0
        return not small[1] - large[1] and least > small[0]


def _is_multiple(large: Product, small: Product) -> bool:
    """Returns if a product is another one, several times."""
    return large != small and not small[1] - large[1] and not large[0] % small[0]


def same(one: Any, other: Any) -> bool:
    """Returns if two sizes are the same for every call."""
    if isinstance(one, int) or isinstance(other, int):
        return isinstance(one, int) and isinstance(other, int) and one == other
    return bool(one.node.expr == other.node.expr)
