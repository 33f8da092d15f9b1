"""Adapters of `peft`: where the transformers model is to which they were added, and what they ask of its layers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..checkpoint.full import state_of, undivided, whole
from ..runtime.cut.origin import parts_only
from ..runtime.layers.parallel import layer_of


def is_adapted(model: nn.Module) -> bool:
    """Returns if a module is peft's, around the model to which it has added adapters."""
    peft: Any = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def carrier(model: nn.Module) -> nn.Module:
    """The model itself, or the one that peft has added adapters to."""
    found: Any = model
    return found.get_base_model() if is_adapted(model) else model


def say_whole_sizes(model: nn.Module) -> None:
    """Where peft asks a weight for the sizes of a layer, let it hear those of the whole."""
    for module in model.modules():
        if isinstance(module, Conv1D) and layer_of(module) is not None:
            module.weight.ds_shape = tuple(module.weight.autotp_origin.shape)  # type: ignore[attr-defined]


def whole_adapters(model: Any) -> dict[str, torch.Tensor]:
    """The state of a model of peft's in which what its adapters are saved from is whole; all ranks must call it."""
    import peft

    state, tensors = state_of(model), dict(model.state_dict(keep_vars=True))
    saved = {id(t) for name in model.peft_config for t in _saved(peft, model, tensors, name)}
    for name, tensor in tensors.items():
        if id(tensor) in saved:
            with parts_only():
                part = undivided(tensor.detach())
                tensors[name] = whole(part, state.layouts[name], state.ranks) if name in state.layouts else part
    return tensors


def _saved(peft: Any, model: Any, tensors: dict[str, torch.Tensor], adapter: str) -> list[torch.Tensor]:
    found = peft.get_peft_model_state_dict(model, state_dict=tensors, adapter_name=adapter)
    return list(found.values())


def is_adapters(name: str) -> bool:
    """Returns if a file of a folder holds or describes adapters, so that new ones take its place."""
    return name.startswith("adapter_")


def write_adapters(model: Any, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write the files that peft writes for its adapters."""
    type(model).save_pretrained(model, str(folder), state_dict=tensors)
