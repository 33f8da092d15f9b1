"""Operators that need code: those whose arguments carry the layout. Each file is a table of one kind: a record an operator, or
its rule alone where there is nothing more to say."""

from __future__ import annotations

from collections.abc import Mapping

from ..record import Operator, Rule
from . import attention, collect, contract, convolution, create, index, reduce, shape, split

_TABLES: Mapping[str, Rule] = {
    **shape.RULES,
    **split.RULES,
    **reduce.RULES,
    **index.RULES,
    **contract.RULES,
    **convolution.RULES,
    **attention.RULES,
    **create.RULES,
    **collect.RULES,
}
CODE: Mapping[str, Operator] = {
    name: rule if isinstance(rule, Operator) else Operator(rule) for name, rule in _TABLES.items()
}
