"""Formulas as a plan writes them, read as numbers: `4096·b·s` at a batch and a sequence."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from ..errors import PlanError

_OPERATORS: Mapping[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def sizes(batch: int, sequence: int, keys: int | None = None) -> dict[str, float]:
    """Values of the letters in formulas: `b` is the batch, `s` the sequence, all others are as long as the keys."""
    long = sequence if keys is None else keys
    return {"b": batch, "s": sequence, **dict.fromkeys("nmkl", long)}


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The number that a formula gives. Raises PlanError for a text that is none, or with letters without a value."""
    try:
        tree = ast.parse(formula.replace("·", "*").replace("^", "**"), mode="eval")
        return _value(tree.body, values)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError) as error:
        letters = ", ".join(sorted(values))
        raise PlanError(f"cannot read the formula {formula!r}; write numbers, {letters}, + - · / // and ^") from error


def _value(tree: ast.expr, values: Mapping[str, float]) -> float:
    match tree:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=letter):
            return values[letter]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
    raise TypeError(type(tree).__name__)
