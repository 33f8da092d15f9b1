"""Processes of one machine: which ones share it, which of them live, and memory they all map."""

from __future__ import annotations

import json
import mmap
import os
import platform
import secrets
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

# Gives every process of a group one value from each, in order of their positions; all of them call it together.
Exchange: TypeAlias = Callable[[Any], list[Any]]

# Flags in shared memory are plain loads and stores here, with no fence. That is right only where the processor keeps
# the order of loads among loads, and of stores among stores: x86-64 does, Arm and others do not.
KEEPS_ORDER = platform.machine().lower() in ("x86_64", "amd64")


@dataclass(frozen=True)
class Process:
    """A process as others on its machine know it. `started` tells it from a later one with the same number."""

    host: tuple[str, ...]
    pid: int
    started: str
    cores: frozenset[int]

    @staticmethod
    def this() -> Process | None:
        """The calling process; None where the system does not tell what names it on its machine."""
        if sys.platform != "linux":
            return None
        pid = os.getpid()
        try:
            # Equal names are not one machine, one boot is; and only in one namespace do numbers name the same process.
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            host = (socket.gethostname(), boot, os.readlink("/proc/self/ns/pid"))
            return Process(host, pid, _stat(pid)[1], frozenset(os.sched_getaffinity(0)))
        except OSError:
            return None

    def to_text(self) -> str:
        return json.dumps([self.host, self.pid, self.started, sorted(self.cores)])

    @staticmethod
    def from_text(text: str) -> Process:
        host, pid, started, cores = json.loads(text)
        return Process(tuple(host), pid, started, frozenset(cores))

    def is_gone(self) -> bool:
        """Returns if this process has ended. Only on its own machine is that known; elsewhere the answer is no."""
        me = Process.this()
        return me is not None and me.host == self.host and not self.is_alive()

    def is_alive(self) -> bool:
        """Returns if the process still runs. One that ended but was not waited for by its parent does not."""
        try:
            state, started = _stat(self.pid)
        except OSError:
            return False
        return state not in "ZXx" and started == self.started


def _stat(pid: int) -> tuple[str, str]:
    """State and start time of a process, from the fields behind its name, which may hold spaces and brackets."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def map_together(size: int, exchange: Exchange) -> tuple[mmap.mmap, list[Process]] | None:
    """Memory of `size` bytes and more, zeros at first, that all processes of a group map; and the processes in order.

    None, on all of them, if one cannot: another machine, another user, a system without what it takes. The memory is
    an anonymous file. It never has a name, so nothing is left of it however the processes end. Everybody offers one, and that of
    the first is taken: so they meet twice only. Behind what is used, the file has a token that says that it is the one offered.
    """
    me = Process.this() if KEEPS_ORDER and hasattr(os, "memfd_create") else None
    token = secrets.token_bytes(16)
    descriptor = None if me is None else _create(size, token)
    try:
        offers: list[tuple[Process | None, str, bytes]] = exchange((me, f"/proc/{os.getpid()}/fd/{descriptor}", token))
        known = [process for process, _, _ in offers if process is not None]
        same_host = me is not None and len(known) == len(offers) and all(p.host == me.host for p in known)
        memory = _map(*offers[0][1:], size) if same_host else None
        agreed = all(exchange(memory is not None))
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return (memory, known) if memory is not None and agreed else None


def _create(size: int, token: bytes) -> int | None:
    with suppress(OSError):
        descriptor = os.memfd_create("autotp", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size + len(token))
            os.pwrite(descriptor, token, size)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    return None


def _map(path: str, token: bytes, size: int) -> mmap.mmap | None:
    """The memory behind a path if it ends with the token, so that it is the one that was offered."""
    try:
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(opened, size + len(token))
        finally:
            os.close(opened)
    except (OSError, ValueError):
        return None
    return memory if memory[size:] == token else None
