"""All ranks in one process: a thread a rank, collectives by meeting at a barrier. For proofs, not for speed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from ...axes.layout import Factors, peers
from ...errors import AutotpError
from ...outside.own import FUNCTIONS
from .ranks import Ranks

T = TypeVar("T")
TIMEOUT_S = 120.0


class _Meeting:
    """Where simulated ranks exchange values. One broken rank breaks the meeting for all, so none waits for ever."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.values: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait(TIMEOUT_S)
        everything = list(self.values)
        self.barrier.wait(TIMEOUT_S)
        return everything


class SimulatedRanks(Ranks):
    """One of several ranks that are threads of this process."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        super().__init__(rank, len(meeting.values))
        self._meeting = meeting

    def exchange(self, text: str, what: str, timeout_s: float) -> list[str]:
        return self._meeting.exchange(self.rank, text)

    def to_first(self, value: torch.Tensor, senders: Sequence[int]) -> Iterator[torch.Tensor]:
        for sender in senders:
            values = self._meeting.exchange(self.rank, value if self.rank == sender else None)
            if self.rank == 0:
                yield values[sender]

    def _exchange(self, value: torch.Tensor, factors: Factors) -> list[torch.Tensor]:
        # A copy: its rank may write into the value while others still read what they were given.
        everything = self._meeting.exchange(self.rank, (factors, value.detach().clone()))
        mine = [everything[peer] for peer in peers(self.rank, factors)]
        if any(other != factors for other, _ in mine):
            raise AutotpError(f"ranks run different collectives: {sorted({str(other) for other, _ in everything})}")
        return [value for _, value in mine]

    def _all_reduce(self, value: torch.Tensor, factors: Factors, op: str) -> torch.Tensor:
        values = FUNCTIONS.stack(self._exchange(value, factors))
        return values.sum(0) if op == "sum" else values.amax(0)

    def _all_gather(self, value: torch.Tensor, factors: Factors) -> list[torch.Tensor]:
        return self._exchange(value, factors)

    def _reduce_scatter(self, stacked: torch.Tensor, factors: Factors) -> torch.Tensor:
        mine = [parts[self.coordinate(factors)] for parts in self._exchange(stacked, factors)]
        return FUNCTIONS.stack(mine).sum(0)


def alone(size: int = 1) -> Ranks:
    """Rank 0 of a group whose other ranks are not there: to cut with, not to run."""
    return SimulatedRanks(0, _Meeting(size))


def simulate(size: int, run: Callable[[Ranks], T]) -> list[T]:
    """Run a function once per simulated rank and return the results in rank order.

    An error on one rank ends all of them and is raised here.
    """
    meeting = _Meeting(size)
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []

    def body(rank: int) -> None:
        try:
            results[rank] = run(SimulatedRanks(rank, meeting))
        except BaseException as error:
            errors.append((rank, error))
            meeting.barrier.abort()

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = next(
        (e for _, e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0][1] if errors else None
    )
    if first is not None:
        raise first
    return results
