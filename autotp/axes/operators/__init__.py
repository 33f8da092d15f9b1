"""Operator rules that need code: those whose arguments carry the layout. Each file is a table of one kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..call import Call
from ..facts import Fact
from . import attention, collect, contract, create, handle, index, reduce, shape, split

CODE: Mapping[str, Callable[[Call], Fact]] = {
    **shape.RULES,
    **split.RULES,
    **reduce.RULES,
    **index.RULES,
    **contract.RULES,
    **attention.RULES,
    **create.RULES,
    **collect.RULES,
    **handle.RULES,
}
