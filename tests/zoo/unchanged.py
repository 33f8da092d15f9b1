"""Tracing leaves a model as it is: parameters, buffers, hooks, attributes, configuration and random state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


class ChangedModelError(AssertionError):
    """A model is not what it was."""


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Raises ChangedModelError if the model or torch's random state is another one afterwards."""
    before = _facts(model)
    tensors = {name: (tensor, tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    yield
    after = _facts(model)
    if changed := [name for name in before | after if before.get(name) != after.get(name)]:
        raise ChangedModelError(f"changed by tracing: {', '.join(changed[:4])}")
    for name, (tensor, copy) in tensors.items():
        if not torch.equal(tensor.nan_to_num(), copy.nan_to_num()):
            raise ChangedModelError(f"{name} has other values after tracing")


def _facts(model: nn.Module) -> dict[str, Any]:
    facts: dict[str, Any] = {"the random state": torch.get_rng_state().tolist()}
    if isinstance(model, PreTrainedModel):
        facts["the configuration"] = str(model.config.to_dict())
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            facts[f"{path}.{name}"] = _identity(value)
    return facts


def _identity(value: Any) -> Any:
    """What must stay equal: plain values, and which objects a dict or a list holds."""
    if isinstance(value, dict):
        return {key: id(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [id(entry) for entry in value]
    return value if isinstance(value, (bool, int, float, str)) else id(value)
