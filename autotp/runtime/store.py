"""What ranks tell each other by the store that they met at. It takes no collective, so a rank that never comes hangs nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch.distributed as dist

from ..errors import RankLostError, UsageError

PrefixStore = dist.PrefixStore  # type: ignore[attr-defined]
MSG_LOST = (
    "{what}: the store that the ranks met at is lost, with the process that held it; start all ranks again ({error})"
)


SOONEST_S, LATEST_S = 0.001, 0.1  # how long to wait before the store is asked again


def exchange_by_store(
    line: Sequence[int], rank: int, text: str, what: str, timeout_s: float, miss: Callable[[Sequence[int]], None]
) -> list[str]:
    """The text of every rank of a line of global ranks, in order; this is the one at position `rank`.

    Raises UsageError naming the ranks that have not called within the time; `what` is what they should have called. What
    `miss` raises, which is called from time to time with the ranks that are waited for, ends the waiting too.
    """
    try:
        return _exchange(line, rank, text, what, timeout_s, miss)
    except dist.DistError as error:
        raise RankLostError(MSG_LOST.format(what=what, error=str(error).splitlines()[0])) from error


def _exchange(
    line: Sequence[int], rank: int, text: str, what: str, timeout_s: float, miss: Callable[[Sequence[int]], None]
) -> list[str]:
    store = PrefixStore(f"autotp/{'-'.join(map(str, line))}", dist.distributed_c10d._get_default_store())
    number = store.add(f"calls/{rank}", 1)  # counted in the store: every object for this group shares it
    keys = [f"{number}/{other}" for other in range(len(line))]
    store.set(keys[rank], text)
    end, pause_s = time.monotonic() + timeout_s, SOONEST_S
    while not store.check(keys):
        if time.monotonic() > end:
            absent = [other for other, key in enumerate(keys) if not store.check([key])]
            store.delete_key(keys[rank])
            store.add(f"calls/{rank}", -1)  # as if it had not been called, so that a later call meets the others
            raise UsageError(
                f"{what} was not called by ranks {absent} within {timeout_s:.0f} s; every rank must call it"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LATEST_S)
        if pause_s == LATEST_S:
            miss([other for other, key in zip(line, keys, strict=True) if not store.check([key])])
    texts = [text.decode() for text in store.multi_get(keys)]
    store.delete_key(f"{number - 1}/{rank}")  # everybody is here, so nobody reads that any more
    return texts
