"""Which ranks of the process group make one model parallel, and what the model knows of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ..checkpoint.state import attach
from ..errors import UsageError
from ..huggingface import models
from ..huggingface.adapters import say_whole_sizes
from ..huggingface.checkpointing import keep_checkpointing
from ..huggingface.generation import keep_in_step
from ..runtime.devices.devices import rank_device
from ..runtime.groups.processes import ProcessRanks
from ..runtime.groups.ranks import Ranks
from .arguments import check_size
from .misuse import refuse_misuse


def process_ranks(
    tp: int | None, mesh: DeviceMesh | None, device: torch.device | str | None, model: nn.Module | None = None
) -> ProcessRanks:
    """This process among the ranks of its tensor-parallel group, on its device. Raises UsageError for a wrong argument."""
    lines = group_lines(tp, mesh)
    line = mesh["tp"] if mesh is not None and mesh.ndim > 1 else mesh
    return ProcessRanks(lines, rank_device(device, mesh, model), line)


def join_ranks(model: nn.Module, ranks: Ranks, *, by_store: bool = False) -> None:
    """What a parallel model's own methods need to know of its ranks: `generate`, `state_dict`, `load_state_dict`,
    `gradient_checkpointing_enable`; and one state of random numbers, by the store if `by_store`."""
    if models.can_generate(model):
        keep_in_step(model, ranks)
    refuse_misuse(model, ranks)
    keep_checkpointing(model)
    say_whole_sizes(model)
    ranks.share_random_state(by_store=by_store)  # dropout of what is whole draws the same on all ranks
    attach(model)


def group_lines(tp: int | None, mesh: DeviceMesh | None) -> list[list[int]]:
    """The global ranks of every tensor-parallel group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("there is no process group; call torch.distributed.init_process_group() first, under torchrun")
    world = dist.get_world_size()
    if mesh is not None:
        if tp is not None:
            raise UsageError("give tp or mesh, not both")
        return _mesh_lines(mesh)
    size = world if tp is None else tp
    check_size(size)
    if size > world or world % size:
        raise UsageError(f"tp={size} does not divide the {world} ranks of the process group")
    return [list(range(first, first + size)) for first in range(0, world, size)]


def _mesh_lines(mesh: DeviceMesh) -> list[list[int]]:
    dim = _dim_of(mesh)
    lines: list[list[int]] = mesh.mesh.movedim(dim, -1).reshape(-1, mesh.size(dim)).tolist()
    return lines


def _dim_of(mesh: DeviceMesh) -> int:
    """Which dim of a mesh is the tensor-parallel one."""
    names = mesh.mesh_dim_names or ()
    if mesh.ndim > 1 and "tp" not in names:
        raise UsageError(f"a mesh of {mesh.ndim} dims needs one named 'tp', this one has {list(names)}")
    return names.index("tp") if mesh.ndim > 1 else 0
