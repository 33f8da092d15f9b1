"""Where the ranks of one machine meet: torch's elastic launcher asks a rendezvous who they are and where their store is."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

TCPStore, PrefixStore = dist.TCPStore, dist.PrefixStore  # type: ignore[attr-defined]
HOST = "127.0.0.1"
LOCAL = "autotp-local"


def register() -> None:
    """Let the launcher know this rendezvous by the name `LOCAL`."""
    if LOCAL not in rendezvous_handler_registry._registry:
        rendezvous_handler_registry.register(LOCAL, lambda params: LocalRendezvous(params.run_id))


def _store() -> Any:
    """A store that listens on the loopback interface only: torch's own listen on all of them, whatever host they are given."""
    listener = socket.create_server((HOST, 0))
    descriptor, port = os.dup(listener.fileno()), listener.getsockname()[1]
    listener.close()
    return TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor, multi_tenant=True)


class LocalRendezvous(RendezvousHandler):
    """Where ranks of one launcher meet, whose number is known: nobody is waited for, and the store listens on the loopback
    interface only. torch's own rendezvous notes each of its steps with all of Python's stack and the files that it is in:
    seconds, where many modules are imported."""

    def __init__(self, run_id: str) -> None:
        self.run_id, self.store = run_id, _store()

    def get_backend(self) -> str:
        return LOCAL

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        place = RendezvousStoreInfo(HOST, self.store.port)
        return RendezvousInfo(PrefixStore(self.run_id, self.store), 0, 1, place)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nobody else could come."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.run_id

    def shutdown(self) -> bool:
        return True
