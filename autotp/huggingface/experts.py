"""transformers' table of experts functions: what takes the place of a model's own loop while tracing.

The loop runs over the experts that are chosen, which only the data say. transformers has the same sum as one product of
groups of rows, and that is traced, also where a configuration asks for the loop ("eager").
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from ..capture.functions import FunctionTable, register_table


def _none_opaque(function: Callable[..., Any]) -> None:
    """All of them are traced through."""


def _own_loop(experts: Any, *args: Any, **kwargs: Any) -> Any:
    """The forward of the experts' class, which is behind the one that looks in the table."""
    return inspect.unwrap(type(experts).forward)(experts, *args, **kwargs)


LOOP = "eager"
register_table(FunctionTable(ALL_EXPERTS_FUNCTIONS, _none_opaque, {LOOP: (grouped_mm_experts_forward, _own_loop)}))
