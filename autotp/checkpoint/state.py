"""`state_dict()` and `load_state_dict()` of a parallel model: dense names and shapes, as a user of the dense model has them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..errors import CheckpointError, UsageError
from ..runtime.collectives.slices import take
from ..runtime.cut.origin import IsCut, Origin
from ..runtime.cut.tensor import CutTensor
from .full import state_of
from .part import Part


def attach(model: nn.Module) -> None:
    """Make `state_dict()` of a parallel model give parts, and `load_state_dict()` take parts or whole tensors."""
    model.register_state_dict_post_hook(_give_parts)
    model.register_load_state_dict_pre_hook(_take_parts)


def _give_parts(module: nn.Module, tensors: MutableMapping[str, Any], prefix: str, metadata: Any) -> None:
    """Parts for what is cut; with `keep_vars=True` the parameters stay as they are. Raises UsageError where FSDP has cut
    the parts again, so that nobody takes a part for the whole."""
    state = state_of(module)
    for name, layouts in state.layouts.items():
        value = tensors.get(prefix + name)
        if isinstance(value, DTensor) and not isinstance(value, nn.Parameter):
            raise UsageError(
                f"{prefix + name} is cut by FSDP too, which state_dict() does not say; use autotp.full_state_dict(model)"
            )
        if isinstance(value, torch.Tensor) and not isinstance(value, (nn.Parameter, Part)):
            local = value.local() if isinstance(value, IsCut) else value
            tensors[prefix + name] = Part.of(local, layouts, state.ranks.rank)


def _take_parts(
    module: nn.Module, tensors: MutableMapping[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
) -> None:
    """Local tensors for parts and for whole ones. Raises CheckpointError for a part of another cut."""
    state = state_of(module)
    for name, layouts in state.layouts.items():
        value = tensors.get(prefix + name)
        if isinstance(value, Part):
            if (value.layouts, value.rank) != (layouts, state.ranks.rank):
                raise CheckpointError(
                    f"tensor {prefix + name!r} is a part of another cut or rank ({value!r}), not that of rank"
                    f" {state.ranks.rank}; resume at another number of ranks with torch.distributed.checkpoint"
                )
            tensors[prefix + name] = CutTensor.of(value.local, Origin(layouts, state.ranks, name))
        elif isinstance(value, torch.Tensor) and tuple(value.shape) == state.shapes[name]:
            part = take(value.detach(), layouts, state.ranks.rank)
            tensors[prefix + name] = CutTensor.of(part, Origin(layouts, state.ranks, name))
