"""Where the processes of one machine wait for each other: a flag for each in memory they share, no lock, no system call.

Every rank has a line of that memory, which it alone writes: its flag, which counts its meetings; a note that says what
each of its last two meetings was for; and whether it gave up. To meet is to write the note, raise the flag, and wait
until no other flag is lower.

What a rank wrote before a meeting the others read after it. That needs no fence on x86-64: stores become visible in the
order of the program, loads are not moved before earlier loads, and a flag is one aligned word. The interpreter, which
calls compiled functions for every step, keeps the order of the program itself. Where a processor does not keep it there
is no meeting, see `host.KEEPS_ORDER`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from ...errors import RankLostError
from .alarm import LOOK_S
from .host import Process

LINE_BYTES = 64  # a cache line for each rank, so that raising a flag does not slow down who waits for another
_WORD = 8
_FLAG, _NOTES, _GAVE_UP = 0, 1, 3  # words of a line; notes of odd and even meetings have a word each

NO_NOTE = -1  # which is the hash of nothing

MOST_SPINS = 2000  # about 0.1 ms, before the core is offered to others
OFFER_S = 0.001  # then this long with offers, before sleeping
NAP_S = 0.00005
ALIVE_S = 0.1  # how often to look whether the others live


class Meeting:
    """One rank's side of the meetings of a group. Any error breaks it for good, and tells the other ranks."""

    def __init__(self, words: memoryview, rank: int, processes: Sequence[Process], timeout_s: float) -> None:
        """`words` are one line for each rank, as signed words of 8 bytes, zeros before the first meeting."""
        size = len(processes)
        lines = [line * LINE_BYTES // _WORD for line in range(size)]
        self._words, self._mine = words, lines[rank]
        self._others = [line for other, line in enumerate(lines) if other != rank]
        self._processes = {lines[other]: process for other, process in enumerate(processes)}
        self._count, self._timeout_s = 0, timeout_s
        self.heard: Callable[[int], str | None] = lambda rank: None  # by which error a rank broke off
        self.look: Callable[[], None] = lambda: None  # raises RankLostError if one did, and others will not
        cores = frozenset[int]().union(*(process.cores for process in processes))
        self._spins = self._most_spins = MOST_SPINS if len(cores) >= size else 0

    def meet(self, note: int) -> None:
        """Wait until all ranks are at this meeting. The note, a hash, says what it is for.

        Raises RankLostError if one has ended, gave up, does not come in time, or comes with another note.
        """
        words, mine = self._words, self._mine
        if words[mine + _GAVE_UP]:
            raise RankLostError("this group of ranks broke before; start all of them again")
        self._count = count = self._count + 1
        place = _NOTES + (count & 1)
        words[mine + place] = note
        words[mine] = count
        try:
            for line in self._others:
                if words[line] < count:
                    self._wait(line, count)
                if words[line + place] != note:
                    raise RankLostError(f"{self._name(line)} {self._reason(line)}")
        except BaseException:
            self._give_up(place)
            raise

    def _wait(self, line: int, count: int) -> None:
        words, spins = self._words, self._spins
        for _ in range(spins):
            if words[line] >= count:
                return
        os.sched_yield()
        if (
            words[line] >= count
        ):  # it came as soon as it was let: the system runs both on one core, where spinning delays it
            self._spins = spins // 2
            return
        self._spins = min(2 * spins + 1, self._most_spins)
        start = time.monotonic()
        look = start + ALIVE_S
        while words[line] < count:
            now = time.monotonic()
            if now >= look:
                self._look(count, now - start)
                look = now + ALIVE_S
            if now < start + OFFER_S:
                os.sched_yield()
            else:
                time.sleep(NAP_S)

    def _give_up(self, place: int) -> None:
        """Let who waits for this rank, and who comes later, find that it broke; the meeting before was a good one."""
        self._words[self._mine + _GAVE_UP] = 1
        self._words[self._mine + place] = NO_NOTE

    def _reason(self, line: int) -> str:
        heard = self.heard(line * _WORD // LINE_BYTES)
        if heard is not None:
            return f"broke off and left the others waiting: {heard}"
        if self._words[line + _GAVE_UP]:
            return "met an error while others waited for it; its own output says why"
        return "runs another collective, one of another size, or in a call with other inputs or another random state"

    def _look(self, count: int, waited_s: float) -> None:
        """Raises RankLostError if a rank that is awaited will not come."""
        for line in self._others:
            ended = not self._processes[line].is_alive()  # before the flag is read: it may have come, then ended
            if self._words[line] >= count:
                continue
            if ended:
                why = self.heard(line * _WORD // LINE_BYTES) or "its own output says why"
                raise RankLostError(f"{self._name(line)} has ended while others waited for it; {why}")
            if self._words[line + _GAVE_UP]:
                raise RankLostError(f"{self._name(line)} {self._reason(line)}")
            if waited_s > LOOK_S:
                self.look()
            if waited_s > self._timeout_s:
                raise RankLostError(f"{self._name(line)} did not come within {self._timeout_s:.0f} s")

    def _name(self, line: int) -> str:
        return f"rank {line * _WORD // LINE_BYTES} of {len(self._processes)} (process {self._processes[line].pid})"
