"""Ranks whose accelerator is the test device, in the kinds of world a user may have made."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from autotp.runtime.groups.launch import HOST, run_ranks
from tests.device.build import missing
from tests.device.module import BACKEND, DEVICE, register

T = TypeVar("T")

WORLDS: dict[str, Callable[[], Any]] = {
    "no backend": dist.init_process_group,
    "its backend": lambda: dist.init_process_group(BACKEND),
    "two backends": lambda: dist.init_process_group(f"cpu:gloo,{DEVICE}:{BACKEND}"),
    "device id": lambda: dist.init_process_group(device_id=torch.device(DEVICE, int(os.environ["LOCAL_RANK"]))),
    "mesh": lambda: init_device_mesh(DEVICE, (int(os.environ["WORLD_SIZE"]),)),
}


def run_on_device(function: Callable[..., T], size: int, *args: Any, world: str = "no backend") -> list[T]:
    """As `run_ranks`, on ranks that made their process group themselves, in one of the `WORLDS`."""
    assert missing() is None
    return run_ranks(_in_world, size, world, function, args)


def _in_world(world: str, function: Callable[..., T], args: tuple[Any, ...]) -> T:
    """Runs on a rank, which has met the others already: they do so again, as a user's script would."""
    port = [_free_port() if dist.get_rank() == 0 else 0]
    dist.broadcast_object_list(port, src=0)
    dist.destroy_process_group()
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(port[0])}
    register()
    WORLDS[world]()
    return function(*args)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
