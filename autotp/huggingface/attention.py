"""transformers' table of attention functions: which of them stay opaque while tracing.

sdpa is traced through, and so is a model's own eager attention, which is not in the table. Everything else there is a
kernel behind Python, or a user's function: it is called for real, on a rank's heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..capture.functions import FunctionTable, register_table


def _opaque(function: Callable[..., Any]) -> tuple[str, Callable[..., Any]] | None:
    if function is sdpa_attention_forward:
        return None
    # transformers' own kernels read the number of heads off their operands; a user's may read it off the module.
    own = function.__module__.startswith("transformers.")
    return "opaque.attention" if own else "opaque.attention_of_whole_groups", _only_shapes


def _only_shapes(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """What an attention function returns: [b, s, heads, e] from q [b, heads, s, d] and v [b, groups, t, e]."""
    batch, heads, length, _ = query.shape
    return query.new_empty(batch, length, heads, value.shape[-1]), None


register_table(FunctionTable(ALL_ATTENTION_FUNCTIONS, _opaque))
