"""Formulas in sizes as data: an expression is the name of its function with its operands. Only known functions are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
from torch.utils._sympy import functions

from .names import UnnamedError

_OF_SYMPY = (
    sympy.Add,
    sympy.Mul,
    sympy.Pow,
    sympy.Eq,
    sympy.Ne,
    sympy.StrictGreaterThan,
    sympy.GreaterThan,
    sympy.StrictLessThan,
    sympy.LessThan,
    sympy.And,
    sympy.Or,
    sympy.Not,
)
_OF_TORCH = (
    "FloorDiv Mod PythonMod CleanDiv Max Min ModularIndexing Where CeilDiv IsNonOverlappingAndDenseIndicator".split()
)
_FUNCTIONS: Mapping[str, Any] = {kind.__name__: kind for kind in _OF_SYMPY} | {
    name: getattr(functions, name) for name in _OF_TORCH if hasattr(functions, name)
}


def formula_data(formula: Any) -> Any:
    """An expression as data. Raises UnnamedError for one that has a function which is not known here."""
    if isinstance(formula, int):
        return formula
    if isinstance(formula, sympy.Symbol):
        return formula.name
    if isinstance(formula, sympy.Integer):
        return int(formula)
    if isinstance(formula, sympy.Rational):
        return ["Rational", formula.p, formula.q]
    name = type(formula).__name__
    if _FUNCTIONS.get(name) is not type(formula):
        raise UnnamedError
    return [name, *map(formula_data, formula.args)]


def formula_of(data: Any, symbols: Mapping[str, sympy.Symbol]) -> Any:
    """The expression of some data."""
    if isinstance(data, int):
        return sympy.Integer(data)
    if isinstance(data, str):
        return symbols[data]
    name, *operands = data
    if name == "Rational":
        return sympy.Rational(*operands)
    given = [formula_of(each, symbols) for each in operands]
    return _FUNCTIONS[name](*given, **({"evaluate": False} if name in _COMPARISONS else {}))


_COMPARISONS = frozenset(kind.__name__ for kind in _OF_SYMPY[3:9])  # such as s > 1, which symbols say of themselves
