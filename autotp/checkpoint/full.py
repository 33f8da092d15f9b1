"""Whole tensors of a parallel model: every rank's part put together in the original layout."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..axes.layout import Factor, Layout
from ..dispatch.apply import Parallel
from ..dispatch.held import ATTRIBUTE, held_in, join_path
from ..errors import UsageError
from ..runtime.collectives.slices import assembled
from ..runtime.cut.origin import IsCut, parts_only
from ..runtime.groups.ranks import Ranks


def state_of(model: nn.Module) -> Parallel:
    """What a parallelized model knows of itself; for a module around one, by the names that it gives the parameters.

    Raises UsageError for a dense model.
    """
    for path, module in model.named_modules():
        if ATTRIBUTE in module.__dict__:
            return _present(module.__dict__[ATTRIBUTE], path, module)
    raise UsageError("the model is not parallel; call autotp.parallelize(model) first")


def _present(state: Parallel, path: str, model: nn.Module) -> Parallel:
    """The state with the names that parameters have now: a module around a layer changes those of the layer."""
    held = {join_path(path, name): own for name, own in held_in(model)}
    layouts, shapes = {n: own.layouts for n, own in held.items()}, {n: tuple(own.shape) for n, own in held.items()}
    return state if layouts == state.layouts else replace(state, layouts=layouts, shapes=shapes)


def full_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """`{name: whole tensor}` in the original layout, on every rank; all ranks must call it."""
    ranks, held = state_of(model).ranks, model.state_dict(keep_vars=True)
    cut = {name: tensor.autotp_origin.layouts for name, tensor in held.items() if isinstance(tensor, IsCut)}
    with parts_only():
        return {
            name: whole(undivided(tensor.detach()), cut[name], ranks) if name in cut else undivided(tensor)
            for name, tensor in held.items()
        }


def full_gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """The same for the gradients of all parameters; None where there is none."""
    state = state_of(model)
    result: dict[str, torch.Tensor | None] = {}
    with parts_only():
        for name, parameter in model.named_parameters(remove_duplicate=False):
            gradient = None if parameter.grad is None else undivided(parameter.grad)
            cut = gradient is not None and name in state.layouts
            result[name] = (
                whole(gradient, state.layouts[name], state.ranks) if cut and gradient is not None else gradient
            )
    return result


def undivided(value: torch.Tensor) -> torch.Tensor:
    """What a tensor-parallel rank holds, where FSDP has cut that further."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def whole(local: torch.Tensor, layouts: tuple[Layout, ...], ranks: Ranks) -> torch.Tensor:
    """The whole tensor of which every rank holds a part, without padding."""
    local = local.local() if isinstance(local, IsCut) else local
    return assembled(ranks.all_gather(local, (Factor(ranks.size, 1),), "checkpoint"), layouts)
