"""The device that a rank computes on: the accelerator of the machine's that is its own, else the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ...errors import UsageError

CPU = torch.device("cpu")
MSG_NO_BACKEND = (
    "the process group sends {has} tensors, and this rank computes on {device}; call"
    " torch.distributed.init_process_group() without a backend, or with one for {kind}, or give device={other!r}"
)
MSG_NO_DEVICE = "device={device} does not exist here: there are {count} devices of the kind; give one of them"


def rank_device(
    given: torch.device | str | None = None, mesh: DeviceMesh | None = None, model: nn.Module | None = None
) -> torch.device:
    """Where this rank computes, which is made the current device of its kind.

    That is the device given, else one of the kind that the mesh has, else the accelerator that the model is on, else the
    one that the process group has a backend for. A group whose one backend sends the CPU's tensors too leaves ranks there. Of
    several devices it is the one that the process has chosen already (by its current device, the group's device id or where
    the model is), else the one of number `LOCAL_RANK`.
    """
    holder = _holder(model)
    if given is not None:
        device = torch.device(given)
    elif mesh is not None:
        device = torch.device(mesh.device_type)
    elif holder is not None:
        device = torch.device(holder.type)
    else:
        device = torch.device(_kind_of_group())
    if device.type == "cpu":
        return CPU
    number: int | None = device.index
    if number is None:
        number = _index(device.type, holder)
    device = torch.device(device.type, number)
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == device.type:
        count = torch.accelerator.device_count()
        if number >= count:
            raise UsageError(MSG_NO_DEVICE.format(device=device, count=count))
        torch.accelerator.set_device_index(number)
    return device


def check_backend(device: torch.device) -> None:
    """Raises UsageError if the process group cannot send what this rank computes."""
    has = _backends()
    if device.type not in has:
        kinds, other = " and ".join(has), next(iter(has))
        raise UsageError(MSG_NO_BACKEND.format(has=kinds, device=device, kind=device.type, other=other))


def backend_of_machine(ranks: int) -> str:
    """The backend of a process group with this many ranks on this machine: that of its accelerators beside the CPU's, if there is
    one accelerator for each."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or torch.accelerator.device_count() < ranks:
        return "gloo"
    return f"cpu:gloo,{accelerator.type}:{dist.get_default_backend_for_device(accelerator)}"


def slots_of(model: nn.Module) -> Iterator[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]]:
    """Where a model keeps its parameters and buffers: the dict, the name in it, and the tensor."""
    for module in model.modules():
        for slots in (module._parameters, module._buffers):
            for name, tensor in list(slots.items()):
                if tensor is not None:
                    yield slots, name, tensor  # type: ignore[misc]


def _holder(model: nn.Module | None) -> torch.device | None:
    """The accelerator that holds a model."""
    tensors = () if model is None else (tensor for _, _, tensor in slots_of(model))
    return next((tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")), None)


def _backends() -> dict[str, str]:
    """The kinds of device that the process group has a backend for."""
    pairs = dist.get_backend_config().split(",")
    return {kind: backend for kind, _, backend in (pair.partition(":") for pair in pairs)}


def _kind_of_group() -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    has = _backends()
    if accelerator is None or has.get(accelerator.type) in (None, has.get("cpu")):
        return "cpu"
    return accelerator.type


def _index(kind: str, holder: torch.device | None) -> int:
    """The number of this rank's device. None of number zero tells a choice from torch's own beginning."""
    bound = getattr(dist.group.WORLD, "bound_device_id", None)
    current = torch.get_device_module(kind).current_device()
    chosen = [bound.index if bound is not None else 0, current, holder.index if holder is not None else 0]
    local, count = int(os.environ.get("LOCAL_RANK", 0)), torch.get_device_module(kind).device_count()
    return next(filter(None, chosen), local if local < count else current)
