"""The calls that a model is planned from: two of different sizes, so that what differs is known to vary."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..errors import UsageError
from ..planner.arguments import Arguments
from ..planner.survey import Example
from . import models


def examples_for(model: nn.Module, example: Any) -> list[Example]:
    """Two calls of different sizes. Raises UsageError if the model's inputs are not known and none were given."""
    if example is not None:
        return _two_sizes(_as_call(example))
    if models.is_transformers_model(model):
        return [((), models.example_inputs(model, *sizes)) for sizes in models.EXAMPLE_SIZES]
    raise UsageError(
        f"the inputs of {type(model).__name__} are not known; give those of one forward, as example=(tensor, ...)"
    )


def _as_call(example: Any) -> Example:
    if isinstance(example, Arguments):
        return example.args, dict(example.kwargs)
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if isinstance(example, dict):
        return (), example
    if isinstance(example, (tuple, list)):
        if len(example) == 2 and isinstance(example[0], (tuple, list)) and isinstance(example[1], dict):
            return tuple(example[0]), example[1]
        return tuple(example), {}
    raise UsageError(
        f"example must be a tensor, a tuple of arguments, a dict of them or autotp.Arguments(...), not"
        f" {type(example).__name__}"
    )


def _two_sizes(call: Example) -> list[Example]:
    """The call and one with a larger batch: the first dim of every tensor that shares the largest tensor's one."""
    leaves, spec = torch.utils._pytree.tree_flatten(call)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if not tensors:
        return [call]
    batch = max(tensors, key=torch.Tensor.numel).shape[0]

    def larger(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == batch:
            return torch.empty((batch + 2, *leaf.shape[1:]), dtype=leaf.dtype, device="meta")
        return leaf

    args, kwargs = torch.utils._pytree.tree_unflatten([larger(leaf) for leaf in leaves], spec)
    return [call, (tuple(args), kwargs)]
