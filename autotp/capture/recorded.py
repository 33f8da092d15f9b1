"""What a unit is called with while a model is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import TraceError
from .opaque import copy_opaque
from .state import CONSTANTS

# The sizes of a call's tensors, its numbers and words, as text: some are symbols.
Sizes: TypeAlias = tuple[str, ...]
# The positional and the named ones.
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def sizes_of(leaves: Iterable[Any], names: Iterable[str]) -> Sizes:
    """What tells a call from one that gives something else: its leaves' sizes, and the names of its keyword arguments."""
    sized = [leaf.shape if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return *names, *(str(leaf) for leaf in sized if isinstance(leaf, (torch.Size, *CONSTANTS)))


def as_it_is_now(args: Any, kwargs: Any) -> Arguments:
    """A call whose Python objects keep the state they have before it; tracing says what it cannot copy."""

    def wanting(tensor: torch.Tensor) -> torch.Tensor:
        # Gradients may be turned off in eval mode: a plan is for training.
        return tensor if torch.is_grad_enabled() else tensor.detach().requires_grad_(tensor.is_floating_point())

    with suppress(TraceError):
        args, kwargs = copy_opaque((args, kwargs), wanting)
    return args, kwargs


def wanting_gradients_too(known: Arguments, other: Arguments) -> Arguments:
    """A call whose tensors want gradients where those in the same places of another call do: a stack's first unit may be given
    data, and less than the others."""
    leaves, spec = pytree.tree_flatten(known)
    its, its_spec = pytree.tree_flatten(other)
    if spec != its_spec:
        placed = dict(pytree.tree_flatten_with_path(other)[0])
        its = [placed.get(path) for path, _ in pytree.tree_flatten_with_path(known)[0]]
    wanting = [_wants_alone(*pair) for pair in zip(leaves, its, strict=True)]
    if not any(wanting):
        return known
    new = [leaf.detach().requires_grad_() if wants else leaf for leaf, wants in zip(leaves, wanting, strict=True)]
    args, kwargs = pytree.tree_unflatten(new, spec)
    return args, kwargs


def _wants_alone(leaf: Any, same: Any) -> bool:
    both = isinstance(leaf, torch.Tensor) and isinstance(same, torch.Tensor) and leaf.dim() == same.dim()
    return both and same.requires_grad and not leaf.requires_grad


def values_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Values that the run may change: a parameter's own, which it does not; of an input without data, small numbers."""
    if tensor.is_meta and not isinstance(tensor, nn.Parameter):
        return (torch.arange(tensor.numel(), device=device) % 7).reshape(tensor.shape).to(tensor.dtype)
    return tensor.detach() if isinstance(tensor, nn.Parameter) else tensor.detach().clone()
