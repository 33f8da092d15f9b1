"""Structural copies of modules: the same Python objects and tensors, none of the hooks, so tracing touches no user's model."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

_HOOKS = tuple(name for name, value in vars(nn.Module()).items() if "hooks" in name and isinstance(value, dict))


def clone(
    module: nn.Module,
    tensor: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    stop: Callable[[nn.Module], nn.Module | None] = lambda module: None,
    memo: dict[int, nn.Module] | None = None,
) -> nn.Module:
    """Copy a module tree without hooks and without instance-level overrides of `forward`.

    `tensor` replaces every parameter, buffer and tensor attribute; `stop` may give another module instead of a copy.
    """
    memo = {} if memo is None else memo
    if id(module) in memo:
        return memo[id(module)]
    replacement = stop(module)
    if replacement is not None:
        memo[id(module)] = replacement
        return replacement
    twin = bare(module)
    memo[id(module)] = twin
    for name, value in vars(twin).items():
        if isinstance(value, torch.Tensor):
            twin.__dict__[name] = tensor(value)
    parameters: dict[str, Any] = {n: p if p is None else tensor(p) for n, p in module._parameters.items()}
    twin._parameters = parameters
    twin._buffers = OrderedDict((n, b if b is None else tensor(b)) for n, b in module._buffers.items())
    twin._modules = OrderedDict(
        (n, m if m is None else clone(m, tensor, stop, memo)) for n, m in module._modules.items()
    )
    return twin


def on_meta(module: nn.Module, shapes: Mapping[int, Sequence[int]]) -> nn.Module:
    """A copy with tensors on the meta device, tied ones tied; of other shapes where `shapes` has one for a tensor's identity."""
    made: dict[int, torch.Tensor] = {}

    def meta(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            value = torch.empty(tuple(shapes.get(id(tensor), tensor.shape)), dtype=tensor.dtype, device="meta")
            parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(value, requires_grad=tensor.requires_grad) if parameter else value
        return made[id(tensor)]

    return clone(module, meta)


def bare(module: nn.Module) -> nn.Module:
    """A copy of one module without its hooks and without an instance-level `forward`, of the class that it had before FSDP;
    what it keeps in a dict is its own."""
    kind: Any = type(module)
    kind = kind.__mro__[2] if issubclass(kind, FSDPModule) else kind
    twin: nn.Module = kind.__new__(kind)
    twin.__dict__ = {n: copy.copy(value) if type(value) is dict else value for n, value in module.__dict__.items()}
    twin.__dict__.pop("forward", None)
    for name in _HOOKS:
        twin.__dict__[name] = OrderedDict()
    if "gradient_checkpointing" in twin.__dict__:
        twin.__dict__["gradient_checkpointing"] = False  # what is computed twice is up to those who run a trace
    return twin
