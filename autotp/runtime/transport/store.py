"""What ranks tell each other by the store that they met at. It takes no collective, so a rank that never comes hangs nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch.distributed as dist

from ...errors import RankLostError, UsageError

PrefixStore = dist.PrefixStore  # type: ignore[attr-defined]
MSG_LOST = (
    "{what}: the store that the ranks met at is lost, with the process that held it; start all ranks again ({error})"
)

MSG_ABSENT = "{what} was not called by ranks {absent} within {timeout_s:.0f} s; every rank must call it"
_MET, _LEFT = "met", "left"

# How long to wait before the store is asked again: a part of what was waited already, so that nobody comes much too late.
SOONEST_S, LATEST_S, PART = 0.001, 0.1, 1 / 20


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
    end = time.monotonic() + timeout_s
    while True:
        round_ = _Round(line, rank)
        texts = round_.texts(text, what, end, timeout_s, miss)
        if texts is not None:
            return texts


class _Round:
    """One try to meet. It is met by all of its ranks or left by all: the first to say so decides, in the store.

    Without that, a rank that is tired of waiting could leave while another one reads what it brought.
    """

    def __init__(self, line: Sequence[int], rank: int) -> None:
        self._line, self._rank = line, rank
        self._store = PrefixStore(f"autotp/{'-'.join(map(str, line))}", dist.distributed_c10d._get_default_store())
        # Counted in the store: every object for this group shares it.
        self._number = self._store.add(f"calls/{rank}", 1)
        self._keys = [f"{self._number}/{other}" for other in range(len(line))]

    def texts(
        self, text: str, what: str, end: float, timeout_s: float, miss: Callable[[Sequence[int]], None]
    ) -> list[str] | None:
        """What all ranks brought; None if another rank has left, so that the next round is to be tried."""
        self._store.set(self._keys[self._rank], text)
        begun = asked = time.monotonic()
        while not self._store.check(self._keys):
            if self._store.check([f"{self._number}/end"]):
                break
            if time.monotonic() > end:
                absent = [other for other, key in enumerate(self._keys) if not self._store.check([key])]
                if absent and self._ends(_LEFT) == _LEFT:
                    raise UsageError(MSG_ABSENT.format(what=what, absent=absent, timeout_s=timeout_s))
            pause_s = min(max(SOONEST_S, PART * (time.monotonic() - begun)), LATEST_S)
            time.sleep(pause_s)
            if time.monotonic() - asked > LATEST_S:
                asked = time.monotonic()
                miss([other for other, key in zip(self._line, self._keys, strict=True) if not self._store.check([key])])
        return self._met() if self._ends(_MET) == _MET else None

    def _ends(self, how: str) -> str:
        """How this round ends: as somebody said before, else so."""
        said: bytes = self._store.compare_set(f"{self._number}/end", "", how)
        return said.decode()

    def _met(self) -> list[str]:
        texts = [text.decode() for text in self._store.multi_get(self._keys)]
        before = self._number - 1  # everybody is here, so nobody reads that any more
        self._store.delete_key(f"{before}/{self._rank}")
        if self._rank == 0:
            self._store.delete_key(f"{before}/end")
        return texts
