"""Starting ranks: results in order, errors where they belong, and nothing left running."""

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from autotp.errors import RankError, UsageError
from autotp.runtime.groups.launch import RankTraceback, run_ranks


class Unsendable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def total(base: float) -> tuple[int, torch.Tensor, int]:
    value = torch.tensor([base + dist.get_rank()])
    dist.all_reduce(value)
    return dist.get_rank(), value, torch.get_num_threads()


def fail_on_rank_1(folder: Path) -> None:
    (folder / str(dist.get_rank())).write_text(str(os.getpid()))
    dist.barrier()
    if dist.get_rank() == 1:
        raise UsageError("rank 1 has had enough")
    time.sleep(600)


def fail_unsendably() -> None:
    raise Unsendable(1, 2)


def vanish() -> None:
    os._exit(3)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_come_in_the_order_of_the_ranks() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    results = run_ranks(total, 2, 10.0)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert [(rank, value.tolist(), threads) for rank, value, threads in results] == [(0, [21.0], 1), (1, [21.0], 1)]
    assert not multiprocessing.active_children()


def test_an_error_of_a_rank_is_raised_at_once_and_ends_the_others(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(UsageError, match="rank 1 has had enough") as caught:
        run_ranks(fail_on_rank_1, 2, tmp_path)
    assert time.monotonic() - start < 60
    assert isinstance(caught.value.__cause__, RankTraceback)
    assert "on rank 1" in str(caught.value.__cause__)
    assert "in fail_on_rank_1" in str(caught.value.__cause__)
    pids = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert not any(map(is_running, pids))
    assert not multiprocessing.active_children()


def test_an_error_that_cannot_be_pickled_keeps_its_text() -> None:
    with pytest.raises(RankError, match="rank 0: Unsendable: 1 and 2"):
        run_ranks(fail_unsendably, 1)


def die_on_rank_1() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_the_rank_that_died_is_named_not_those_that_missed_it() -> None:
    with pytest.raises(RankError, match=r"rank 1 was ended by signal 9 \(SIGKILL\)"):
        run_ranks(die_on_rank_1, 2)


def test_a_rank_that_dies_is_an_error() -> None:
    with pytest.raises(RankError, match="rank 0 ended with exit code 3 and without an answer"):
        run_ranks(vanish, 1)


def test_ranks_that_take_too_long_are_ended() -> None:
    with pytest.raises(TimeoutError, match=r"rank \d did not finish within 1 s"):
        run_ranks(time.sleep, 2, 600.0, limit_s=1.0)
    assert not multiprocessing.active_children()


def listening(pid: int) -> set[str]:
    """The addresses, as the system writes them, at which a process waits for connections."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            sockets.add(os.readlink(entry))
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return {line[1].rpartition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def who_listens(launcher: int) -> set[str]:
    total(1.0)
    return listening(os.getpid()) | listening(launcher)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system does not say who listens where")
def test_ranks_listen_on_the_loopback_interface_only() -> None:
    found = set().union(*run_ranks(who_listens, 2, os.getpid()))
    assert found <= {"0100007F", "00000000000000000000000001000000"}
    assert found
