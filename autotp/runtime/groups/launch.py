"""Local ranks: a function on several processes of this machine, started by torch's elastic launcher as `torchrun` does."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, launch_agent

from ...errors import RankError
from ..devices.devices import backend_of_machine
from .rendezvous import HOST, LOCAL, register

T = TypeVar("T")
POLL_S = 0.05
# What ranks are forked with: the modules that import nearly everything, torch and transformers with it.
PRELOADED = ["autotp.api", "autotp.session.weights"]
# What torch's agent puts into a rank's environment; the rest of it is the launching process's.
SET_BY_AGENT = re.compile(
    r"(\w+_)?(RANK|WORLD_SIZE|ROLE_NAME)|(MASTER|TORCHELASTIC)_\w+|TORCH_\w+_ASYNC_ERROR_HANDLING"
)
# What the launcher answers by ending the ranks: SIGINT here, the others in torch's agent.
AGENT_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT")
# A collective whose peer has gone raises a RuntimeError. A rank with one stays this much longer, so that the launcher,
# which ends all ranks when it sees the first one end, sees the peer.
LINGER_S = 5.0


class RankTraceback(Exception):
    """The cause of an error that a rank raised: which rank, and where in it."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"on rank {rank}:\n{text}")
        self.rank, self.text = rank, text


def run_ranks(
    function: Callable[..., T],
    size: int,
    *args: Any,
    timeout_s: float = 60.0,
    limit_s: float | None = 300.0,
    backend: str | None = "gloo",
) -> list[T]:
    """Run a function once on each of `size` new processes that form a group; returns the results in rank order.

    The function, its arguments and its results are pickled, so the function lives in a module. Each process computes
    with one thread unless the function says otherwise. No process outlives this call: not where a rank fails or dies,
    not where this process is interrupted or killed. They are forked from a server that has imported this package, so
    that it is imported once, however many ranks there are and however often this is called.

    Args:
        timeout_s: how long a collective waits for the other ranks.
        limit_s: how long the function may take, None for as long as it likes.
        backend: of the process group; None for the one of this machine's devices.

    Raises:
        What the first rank to fail raised, with a RankTraceback as its cause. RankError for a rank that ends without
        an answer, TimeoutError if a rank takes longer than `limit_s`.
    """
    with tempfile.TemporaryDirectory(prefix="autotp-") as folder, _signals() as received:
        task = pickle.dumps((function, args))
        environment = {name: value for name, value in os.environ.items() if not SET_BY_AGENT.fullmatch(name)}
        job = _Job(task, environment, Path(folder), timeout_s, limit_s or 0.0, backend)
        try:
            answers = _launch(size, job)
        except ChildFailedError as failed:
            error, cause = _first_error(failed, job)
            raise error from cause
        except SignalException as caught:
            received.append(caught.sigval)
            answers = {}
    if received:
        signal.raise_signal(received[0])  # the ranks are ended; now it does what it did before
        raise RankError(f"interrupted by {received[0].name}")
    return [pickle.loads(answers[rank]) for rank in range(size)]


@dataclass(frozen=True)
class _Job:
    """What every rank is told; `task` is the pickled function with its arguments, `folder` where errors are left."""

    task: bytes
    environment: dict[str, str]
    folder: Path
    timeout_s: float
    limit_s: float
    backend: str | None


def _launch(size: int, job: _Job) -> dict[int, bytes]:
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id="autotp",
        rdzv_backend=LOCAL,
        rdzv_endpoint=f"{HOST}:0",
        local_addr=HOST,
        max_restarts=0,
        monitor_interval=POLL_S,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(job.folder)),
        signals_to_handle=",".join(AGENT_SIGNALS),
    )
    register()
    multiprocessing.set_forkserver_preload(PRELOADED)
    with _quiet():
        return launch_agent(config, _rank_main, [job])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the agent's own account of how ranks end."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _signals() -> Iterator[list[signal.Signals]]:
    """Collects the signals that end the ranks, and gives them their old meaning afterwards.

    A Ctrl-C goes to every process of the terminal. Ranks start with it held back, so that it finds none half way through
    its imports; this process takes it and ends them. The main thread's mask is what they inherit, so another thread is
    there to be interrupted, and Python runs the handler in the main thread.
    """
    received: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def end_ranks(number: int, _: FrameType | None) -> None:
        received.append(signal.Signals(number))
        if len(received) == 1:
            raise SignalException("interrupted", signal.SIGTERM)

    names = (*AGENT_SIGNALS, "SIGINT")
    before = {name: signal.getsignal(getattr(signal, name)) for name in names}
    over = threading.Event()
    listener = threading.Thread(target=over.wait, daemon=True)
    listener.start()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, end_ranks)
    try:
        yield received
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        over.set()
        listener.join()


def _first_error(failed: ChildFailedError, job: _Job) -> tuple[BaseException, RankTraceback | None]:
    """What to raise for the first rank that failed, and its cause: what the rank left behind, else how it ended."""
    rank, failure = failed.get_first_failure()
    file = job.folder / str(rank)
    if file.exists():
        error, text = pickle.loads(file.read_bytes())
        return (RankError(f"rank {rank}: {error}") if isinstance(error, str) else error), RankTraceback(rank, text)
    if failure.exitcode == -signal.SIGINT:  # the terminal's Ctrl-C reached the rank before the launcher saw its own
        return KeyboardInterrupt(), None
    if failure.exitcode == -signal.SIGALRM:
        return TimeoutError(f"rank {rank} did not finish within {job.limit_s:.0f} s"), None
    if failure.exitcode < 0:
        return RankError(f"rank {rank} was ended by signal {-failure.exitcode} ({failure.signal_name()})"), None
    return RankError(f"rank {rank} ended with exit code {failure.exitcode} and without an answer"), None


def _rank_main(job: _Job) -> bytes:
    """One rank: join the group, run the function, give its result or leave its error behind."""
    # A Ctrl-C ends a rank at once, even inside a collective.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.setitimer(signal.ITIMER_REAL, job.limit_s)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    os.environ.update(job.environment)
    gc.freeze()  # a collection would copy every page that holds what was imported before the fork
    torch.set_num_threads(1)
    try:
        stay_on_this_host()
        join_group(job.timeout_s, job.backend)
        function, args = pickle.loads(job.task)
        answer = pickle.dumps(function(*args))
    except BaseException as error:
        message = pickle.dumps((_sendable(error), traceback.format_exc()))
        (job.folder / os.environ["RANK"]).write_bytes(message)
        sys.stdout.flush()
        if isinstance(error, RuntimeError) and dist.is_initialized() and dist.get_world_size() > 1:
            time.sleep(LINGER_S)
        os._exit(1)  # a broken group may not let the interpreter end
    dist.destroy_process_group()
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    return answer


def _end_with_launcher() -> None:
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    launcher.join()
    os._exit(1)


def stay_on_this_host() -> None:
    """Let gloo talk over the loopback interface, so that it needs no name of this host to be known."""
    loopback = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback.pop())


def join_group(timeout_s: float, backend: str | None = None) -> None:
    """Join the process group that torch's launcher (this module or `torchrun`) has described in the environment.

    Unless one is given, the backends are those of this machine's accelerators and of the CPU, or the CPU's alone where there is
    not an accelerator for each of its ranks.
    """
    backend = backend or backend_of_machine(int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))


def _sendable(error: BaseException) -> BaseException | str:
    """The error, or its text if it cannot be pickled and read back."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return f"{type(error).__name__}: {error}"
    return error
