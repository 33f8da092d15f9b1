"""What a plan is best for: the least memory, or the least time of some work in no more than some memory.

The time of a unit is that of `estimate.py`: arithmetic at the peak rate or weights at the memory's, whichever takes longer,
and all collectives, one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import sympy

from ..axes.layout import Cuts
from ..errors import UsageError, nearest
from ..placement.place import Placement
from .balance import STEP
from .choose import UnitProblem
from .cost import Hardware, Workload
from .counter import Counter
from .estimate import GIB, OPTIMIZER_BYTES
from .least import Least
from .weigh import Weigher

OBJECTIVES = ("balanced", "memory", "time")
LEAST_MEMORY = "least memory: what no chain cuts is cut alone, and gathered where it is made"
SEQUENCES = 8  # that are written at once
_SHARE = 0.5  # of a rank's memory, for weights and what training keeps of each


@dataclass(frozen=True)
class Phase:
    """A part of some work: so many sequences of so many tokens at once, so often, with a backward or without; how many positions
    each token attends to, if these are not its sequence's own but kept in a cache."""

    name: str
    sequence: int
    batch: int = 1
    keys: int | None = None
    backward: bool = False
    times: int = 1

    @property
    def tokens(self) -> int:
        """The tokens of all sequences."""
        return self.batch * self.sequence

    def __str__(self) -> str:
        return f"{self.name} of {self.tokens:,} tokens" + (f", {self.times} times" if self.times > 1 else "")


def _phases(tokens: int) -> dict[str, tuple[Phase, ...]]:
    """Every known work: a training step, reading a prompt, writing one token of some sequences, and all of these."""
    training, prefill = Phase("a training step", tokens, backward=True), Phase("a prefill", tokens)
    decode = Phase("a decoding step", 1, SEQUENCES, tokens)
    mix = (training, prefill, replace(decode, times=128))
    return {"training": (training,), "prefill": (prefill,), "decode": (decode,), "mix": mix}


WORKLOADS = tuple(_phases(1))


@dataclass(frozen=True)
class Objective:
    """The least time of some phases in at most so many bytes of weights, and of what training keeps of them, on a rank."""

    phases: tuple[Phase, ...]
    most_bytes: float
    element_bytes: int

    @property
    def bytes_of_element(self) -> int:
        """Bytes that a rank holds for each element of a weight."""
        training = any(phase.backward for phase in self.phases)
        return self.element_bytes * (2 if training else 1) + (OPTIMIZER_BYTES if training else 0)

    def __str__(self) -> str:
        kept = "weights, gradients and optimizer state" if any(p.backward for p in self.phases) else "weights"
        work = " and ".join(map(str, self.phases))
        return f"least time of {work}, with at most {self.most_bytes / GIB:.4g} GiB of {kept} on a rank"


def objective_of(
    name: str, work: str, memory_gib: float | None, machine: Hardware, workload: Workload
) -> Objective | None:
    """The least time, if that is asked for, else None. Raises UsageError for a word or a number that is none."""
    for given, known, what in ((name, OBJECTIVES, "objective"), (work, WORKLOADS, "workload")):
        if given not in known:
            raise UsageError(f"there is no {what} {given!r}{nearest(given, known)}; known: {', '.join(known)}")
    if memory_gib is not None and not (name == "time" and 0 < memory_gib < math.inf):
        raise UsageError("memory_gib bounds the memory of a rank with objective='time'; give a number of GiB above 0")
    if name != "time":
        return None
    most = (_SHARE * machine.memory_gib if memory_gib is None else memory_gib) * GIB
    return Objective(_phases(workload.tokens)[work], most, workload.element_bytes)


class UnitTime:
    """The time of one unit's work."""

    def __init__(self, problem: UnitProblem, machine: Hardware, objective: Objective) -> None:
        self.machine, self.objective, self.each = machine, objective, objective.element_bytes
        self.backward = any(phase.backward for phase in objective.phases)
        self.weighers = {phase: Weigher(problem.graph, machine, self._workload(phase)) for phase in objective.phases}
        self.at_least = Least(problem, list(self.weighers.values()))

    def _workload(self, phase: Phase) -> Workload:
        return Workload(phase.tokens, self.each, phase.batch, phase.keys)

    def least_under(self, cuts: Cuts) -> float:
        """What some cuts cannot be faster than, wherever their collectives are: every rank computes and reads its parts."""
        found, read = self.at_least.work(cuts), self.at_least.read(cuts) * self.each
        return sum(
            phase.times * (_passes(phase) * self.machine.computing(flops, 0.0, read) + self._cached(phase, reread))
            for phase, (flops, reread) in zip(self.weighers, found, strict=True)
        )

    def _cached(self, phase: Phase, reread: float) -> float:
        """Seconds of reading so many elements of a cache, where a phase has one."""
        return reread * self.each / (self.machine.memory_gbps * 1e9) if phase.keys is not None else 0.0

    def of(self, placement: Placement) -> tuple[float, float]:
        """Seconds of all phases under a placement: of computing, and of all collectives."""
        counter = Counter(placement, next(iter(self.weighers.values())))
        work = counter.all_flops(), counter.beyond(), counter.reread(), counter.read()
        each = [(phase.times, *self._of_phase(phase, placement, *work)) for phase in self.objective.phases]
        return math.fsum(n * own for n, own, _ in each), math.fsum(n * own for n, _, own in each)

    def _of_phase(
        self, phase: Phase, placement: Placement, flops: sympy.Expr, waits: sympy.Expr, reread: sympy.Expr, read: int
    ) -> tuple[float, float]:
        weigher, machine = self.weighers[phase], self.machine
        number = weigher.sizing.number
        computing = machine.computing(number(flops), number(waits), read * self.each)
        cached = self._cached(phase, number(reread))
        collectives = [c for c in weigher.collectives(placement) if phase.backward or c.phase == "forward"]
        return _passes(phase) * computing + cached, math.fsum(c.seconds for c in collectives)


def _passes(phase: Phase) -> int:
    return STEP if phase.backward else 1
