"""A family's tiny model with random weights."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from autotp.huggingface.models import build_model
from autotp.huggingface.tiny import tiny_config

from .kinds import CAUSAL, Kind
from .settings import AFTER, WHOLE

Model = TypeVar("Model", bound=nn.Module)
KV_HEADS = 2  # fewer than the ranks of some sizes
NOISE = 0.1  # added to the initial weights, which are zero, one, or so small that attention is uniform


def model_of(kind: Kind, seed: int = 0) -> PreTrainedModel:
    """The family's model in eval mode. Raises whatever transformers raises for one that cannot be built."""
    return model_from(config_of(kind), kind, seed)


def model_from(config: PretrainedConfig, kind: Kind, seed: int = 0) -> PreTrainedModel:
    """The same of a configuration."""
    torch.manual_seed(seed)
    config.architectures = [_class_of(kind, config).__name__]
    return with_noise(build_model(config, meta=False))


def with_noise(model: Model) -> Model:
    """The same model with other weights, none of them zero or one."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data += _noise(parameter) * torch.randn_like(parameter)
    return model


def _noise(parameter: torch.Tensor) -> float:
    """Less for kernels of many numbers: through dozens of layers of them values grew so that the dense model's own rounding
    was all that was left of its gradients."""
    summed = math.prod(parameter.shape[1:]) if parameter.dim() > 2 else 1
    return min(NOISE, summed**-0.5)


def config_of(kind: Kind) -> PretrainedConfig:
    """The family's own defaults with small sizes, few key-value heads, and what this family needs besides."""
    if kind.name in WHOLE:
        return AutoConfig.for_model(kind.name, **WHOLE[kind.name])
    config = tiny_config(AutoConfig.for_model(kind.name))
    _share_key_value_heads(config)
    set_in(config, AFTER.get(kind.name, {}))
    return config


def _class_of(kind: Kind, config: PretrainedConfig) -> Any:
    if kind.head == CAUSAL:
        return modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    found = AutoModel._model_mapping[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _share_key_value_heads(config: PretrainedConfig) -> None:
    """Let several query heads share a key and a value where the family can do that."""
    for part in (config, *(getattr(config, name) for name in config.sub_configs)):
        heads = getattr(part, "num_key_value_heads", None)
        latent = getattr(part, "kv_lora_rank", None) is not None
        if isinstance(heads, int) and heads > KV_HEADS and not latent and part.num_attention_heads % KV_HEADS == 0:
            part.num_key_value_heads = KV_HEADS


def set_in(config: PretrainedConfig, settings: dict[str, Any]) -> None:
    """Change settings; those of a nested configuration are a dict."""
    for name, value in settings.items():
        inner = getattr(config, name, None)
        if isinstance(inner, PretrainedConfig):
            set_in(inner, value)
        else:
            setattr(config, name, value)
