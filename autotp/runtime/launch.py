"""Real ranks on this machine, each a process under gloo: for tests and demonstrations. `torchrun` is for the rest."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
HOST = "127.0.0.1"
Store = dist.TCPStore  # type: ignore[attr-defined]


class RankTraceback(Exception):
    """The cause of an error that a rank raised: where in the rank it happened."""


def run_ranks(
    function: Callable[..., T], size: int, *args: Any, timeout_s: float = 60.0, limit_s: float = 300.0
) -> list[T]:
    """Run a function once on each of `size` new processes that form a gloo group; returns the results in rank order.

    The function, its arguments and its results are pickled, so the function lives in a module. Each process computes
    with one thread. No process outlives this call.

    Args:
        timeout_s: how long a collective waits for the other ranks.
        limit_s: how long everything may take.

    Raises:
        What the first rank to fail raised, with that rank's traceback as its cause. RuntimeError for a rank that ends
        without an answer, TimeoutError if the ranks take longer than `limit_s`.
    """
    store = Store(HOST, 0, is_master=True, wait_for_workers=False)
    task = pickle.dumps((function, args))
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    answers: dict[connection.Connection, int] = {}
    patience_s = 0.0
    try:
        for rank in range(size):
            receiving, sending = context.Pipe(duplex=False)
            answers[receiving] = rank
            process = context.Process(
                target=_rank_main, args=(rank, size, store.port, timeout_s, task, sending), daemon=True
            )
            with _interrupts_held_back():
                process.start()
            processes.append(process)
            sending.close()
        results = _collect(answers, processes, limit_s)
        patience_s = 10.0
        return results
    finally:
        _end(processes, patience_s)
        for receiving in answers:
            receiving.close()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process started inside never sees a Ctrl-C: its parent does, and ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _collect(answers: dict[connection.Connection, int], processes: list[SpawnProcess], limit_s: float) -> list[Any]:
    waiting, deadline = dict(answers), time.monotonic() + limit_s
    results: list[Any] = [None] * len(answers)
    while waiting:
        ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"ranks {sorted(waiting.values())} did not finish within {limit_s:.0f} s")
        for receiving in ready:
            assert isinstance(receiving, connection.Connection)
            rank = waiting.pop(receiving)
            results[rank] = _answer(receiving, rank, processes[rank])
    return results


def _answer(receiving: connection.Connection, rank: int, process: SpawnProcess) -> Any:
    """A rank's result. Raises what it raised."""
    try:
        message = receiving.recv_bytes()
    except EOFError:
        process.join(1.0)
        raise RuntimeError(f"rank {rank} ended with exit code {process.exitcode} and without an answer") from None
    failed, value, where = pickle.loads(message)
    if not failed:
        return value
    cause = RankTraceback(f"on rank {rank}:\n{where}")
    if isinstance(value, str):
        raise RuntimeError(f"rank {rank}: {value}") from cause
    raise value from cause


def _end(processes: list[SpawnProcess], patience_s: float) -> None:
    """Wait a while for processes to end by themselves, then end them."""
    deadline = time.monotonic() + patience_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for end in (SpawnProcess.terminate, SpawnProcess.kill):
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            end(process)
        for process in alive:
            process.join(5.0)
    for process in processes:
        process.close()


def _rank_main(rank: int, size: int, port: int, timeout_s: float, task: bytes, sending: connection.Connection) -> None:
    """One rank: join the group, run the function, send back its result or its error."""
    torch.set_num_threads(1)
    try:
        _join_group(rank, size, port, timedelta(seconds=timeout_s))
        function, args = pickle.loads(task)
        message = pickle.dumps((False, function(*args), ""))
    except BaseException as error:
        message = pickle.dumps((True, _sendable(error), traceback.format_exc()))
    with suppress(BrokenPipeError):
        sending.send_bytes(message)
    sending.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _join_group(rank: int, size: int, port: int, timeout: timedelta) -> None:
    loopback = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback.pop())
    store = Store(HOST, port, is_master=False, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)


def _sendable(error: BaseException) -> BaseException | str:
    """The error, or its text if it cannot be pickled and read back."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return f"{type(error).__name__}: {error}"
    return error
