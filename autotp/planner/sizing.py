"""Sizes of traced values as formulas in a unit's batch and sequence, and as numbers at a workload."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import sympy
import torch

from .cost import Workload
from .formula import sizes


class Sizing:
    """Numbers of elements as formulas in the sizes of a unit's inputs: `b` (batch, the first dim), `s` (sequence, the
    second), further letters for further dims. Streams that are stacked before the batch do not count."""

    LETTERS = "bsnmkl"

    def __init__(self, graph: torch.fx.Graph, workload: Workload) -> None:
        self.workload = workload
        self.letters: dict[Any, sympy.Symbol] = {}
        for node in graph.nodes:
            if not isinstance(value := node.meta.get("val"), torch.Tensor):
                continue
            stacked = itertools.takewhile(lambda size: isinstance(size, int) and size > 1, value.shape)
            # What an object has may have been made for one batch.
            first = len(list(stacked)) if node.op == "placeholder" else 0
            for dim, size in enumerate(value.shape[first:]):
                symbols: set[Any] = set() if isinstance(size, int) else size.node.expr.free_symbols
                for symbol in sorted(symbols, key=str):
                    letter = self.LETTERS[min(dim, len(self.LETTERS) - 1)]
                    self.letters.setdefault(symbol, sympy.Symbol(letter, positive=True, integer=True))
        self.packed = self._is_packed(graph)

    def _is_packed(self, graph: torch.fx.Graph) -> bool:
        """Returns if the inputs have all sequences in one row, as patches of images are, so that `b` counts tokens."""
        inputs = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
        tensors = [value for value in inputs if isinstance(value, torch.Tensor) and value.dim()]
        rows = [value.dim() for value in tensors if not isinstance(value.shape[0], int)]
        second = any(letter.name != "b" for letter in self.letters.values())
        return bool(rows) and max(rows) <= 2 and not second

    def elements(self, value: torch.Tensor) -> sympy.Expr:
        """Number of elements of a traced value as a formula. A complex number is two."""
        return sympy.expand(sympy.Mul(2 if value.is_complex() else 1, *map(self.expression, value.shape)))

    def share(self, value: torch.Tensor, share: Fraction) -> sympy.Expr:
        """Number of elements of a share of a traced value as a formula."""
        return self.elements(value) * sympy.Rational(share)

    def expression(self, size: int | torch.SymInt) -> sympy.Expr:
        """One size as a number or a formula."""
        return sympy.Integer(size) if isinstance(size, int) else size.node.expr.xreplace(self.letters)

    def number(self, elements: sympy.Expr) -> float:
        """The formula at the workload."""
        tokens, batch = self.workload.tokens, self.workload.batch
        values = sizes(batch, tokens // batch, self.workload.keys) | ({"b": tokens} if self.packed else {})
        return number_at(elements, values)


def number_at(formula: sympy.Expr, values: Mapping[str, float]) -> float:
    """The number that a formula gives. What would divide by nothing at these sizes (by the chunks of a single token, by the clips
    in a batch that is smaller than one) is what it is at the largest of them."""
    exact = {symbol: sympy.sympify(values[symbol.name]) for symbol in formula.free_symbols}
    return float(_number_at(formula, exact, dict.fromkeys(exact, sympy.sympify(max(values.values())))))


def _number_at(formula: Any, exact: Mapping[Any, Any], largest: Mapping[Any, Any]) -> Any:
    try:
        return formula.xreplace(exact)
    except ZeroDivisionError:
        parts = [_number_at(part, exact, largest) for part in formula.args]
    try:
        return formula.func(*parts)
    except ZeroDivisionError:
        return formula.xreplace(largest)
