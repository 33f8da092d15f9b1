"""Where the ranks of one machine meet: torch's elastic launcher asks a rendezvous who they are and where their store is."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

TCPStore = dist.TCPStore  # type: ignore[attr-defined]
HOST = "127.0.0.1"
LOCAL = "autotp-local"


def register() -> None:
    """Let the launcher know this rendezvous by the name `LOCAL`."""
    if LOCAL not in rendezvous_handler_registry._registry:
        rendezvous_handler_registry.register(LOCAL, lambda params: LocalRendezvous(params.run_id))


class LocalRendezvous(StaticTCPRendezvous):
    """The ranks of one launcher are known, so nobody is waited for; their store listens on the loopback interface only.

    torch's default notes each of its steps with all of Python's stack and the files that it is in: seconds, where many modules
    are imported."""

    def __init__(self, run_id: str) -> None:
        store = _store()
        super().__init__(HOST, store.port, rank=0, world_size=1, run_id=run_id, timeout=0)  # of a store of its own
        self._store = store

    def get_backend(self) -> str:
        return LOCAL


def _store() -> Any:
    """A store that listens on the loopback interface only: torch's own listen on all of them, whatever host they are given."""
    listener = socket.create_server((HOST, 0))
    descriptor, port = os.dup(listener.fileno()), listener.getsockname()[1]
    listener.close()
    return TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor, multi_tenant=True)
