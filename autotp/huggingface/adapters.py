"""Adapters of `peft`: where the transformers model is to which they were added, and what they ask of its layers."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from ..rewrite.apply import HELD
from ..runtime.layers import ParallelLayer


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
        if isinstance(module, ParallelLayer) and isinstance(module, Conv1D):
            module.weight.ds_shape = module.__dict__[HELD]["weight"].shape  # type: ignore[attr-defined]
