"""Generation on several ranks: every rank calls `generate` alike, and gets the same tokens."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, EncoderDecoderCache

from ..errors import UsageError
from ..runtime.groups.ranks import Ranks

CLOCK = (
    "max_time stops each rank by its own clock, so that some would wait for ever for the others; "
    "use max_new_tokens, or a stopping criterion on which all ranks agree"
)


def keep_in_step(model: PreTrainedModel, ranks: Ranks) -> None:
    """Make `model.generate` begin with the first rank's random state on every rank, so that all draw the same tokens.

    That is one small collective a call, and none a token: equal logits and equal states draw equal tokens.
    """
    kind: Any = type(model)
    generate = kind.generate

    @functools.wraps(generate)
    def in_step(model: Any, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config") or model.generation_config
        if kwargs.get("max_time", config.max_time if config is not None else None) is not None:
            raise UsageError(CLOCK)
        ranks.share_random_state()
        return generate(model, *args, **kwargs)

    model.__dict__["generate"] = types.MethodType(in_step, model)  # a method, so that a copy of the model gets its own


def cache_bytes(cache: Cache | None) -> int:
    """Bytes of the tensors that a cache of keys and values holds on this rank."""
    if isinstance(cache, EncoderDecoderCache):
        return cache_bytes(cache.self_attention_cache) + cache_bytes(cache.cross_attention_cache)
    layers = [] if cache is None else cache.layers
    leaves = pytree.tree_leaves([vars(layer) for layer in layers])
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))
