"""Sizes of dimensions as integers, symbolic ones included.

Every free symbol is replaced by a large prime of its own and the expression evaluated. Two polynomial sizes are then
equal (or divide each other) exactly when the expressions do, up to a chance that does not occur at these magnitudes.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

FIRST_PRIME = 1_000_003


def _primes() -> Any:
    return (n for n in itertools.count(FIRST_PRIME, 2) if all(n % d for d in range(3, 1100, 2)))


class Sizes:
    """Turns `int | SymInt | node-valued` sizes into integers, consistently over one graph."""

    def __init__(self) -> None:
        self._primes = _primes()
        self._symbols: dict[Any, int] = {}
        self._known: dict[Any, int] = {}

    def __call__(self, size: Any) -> int:
        """The integer that stands for a size. Raises TypeError for what is no size."""
        if isinstance(size, torch.fx.Node):
            size = size.meta["val"]
        if isinstance(size, int):
            return size
        if not isinstance(size, torch.SymInt):
            raise TypeError(f"not a size: {size!r}")
        expr = size.node.expr
        if expr not in self._known:
            for symbol in sorted(expr.free_symbols, key=str):
                if symbol not in self._symbols:
                    self._symbols[symbol] = next(self._primes)
            self._known[expr] = int(expr.xreplace(self._symbols))
        return self._known[expr]
