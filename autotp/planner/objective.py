"""What a plan is best for: the least memory, or the least time of some work in no more than some memory.

The time of a unit is that of `estimate.py`: arithmetic at the peak rate or weights at the memory's, whichever takes longer,
and all collectives, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..axes.term import Term
from ..chains.match import readers
from ..errors import UsageError, nearest
from ..placement.place import Placement
from .balance import STEP, waiting
from .choose import Choice, UnitProblem
from .combinations import elements_of
from .cost import Hardware, Workload
from .estimate import GIB, OPTIMIZER_BYTES
from .weigh import Weigher
from .work import Counter

OBJECTIVES = ("balanced", "memory", "time")
LEAST_MEMORY = "least memory: what no chain cuts is cut alone, and gathered where it is made"
SEQUENCES = 8  # that are written at once
_SHARE = 0.5  # of a rank's memory, for weights and what training keeps of each


@dataclass(frozen=True)
class Phase:
    """A part of some work: so many tokens at once, so often, with a backward or without."""

    name: str
    tokens: int
    backward: bool = False
    times: int = 1

    def __str__(self) -> str:
        return f"{self.name} of {self.tokens:,} tokens" + (f", {self.times} times" if self.times > 1 else "")


def _phases(tokens: int) -> dict[str, tuple[Phase, ...]]:
    """Every known work: a training step, reading a prompt, writing one token of some sequences, and all of these."""
    training, prefill = Phase("a training step", tokens, backward=True), Phase("a prefill", tokens)
    decode = Phase("a decoding step", SEQUENCES)
    mix = (training, prefill, Phase(decode.name, SEQUENCES, times=128))
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
        self.weighers = {
            phase: Weigher(problem.graph, machine, Workload(phase.tokens, objective.element_bytes))
            for phase in objective.phases
        }
        self.read = _read_whole(problem)
        self.looked_up = sum(elements_of(d, {}) for n, d in problem.parameters().items() if n not in self.read)

    def least(self, elements: int) -> float:
        """What no combination that leaves so many elements on a rank can be faster than: the weights are read."""
        read = max(elements - self.looked_up, 0) * self.each / (self.machine.memory_gbps * 1e9)
        return sum(phase.times * (STEP if phase.backward else 1) * read for phase in self.objective.phases)

    def of(self, choice: Choice) -> float:
        """Seconds of all phases under a choice."""
        read = sum(elements_of(dims, choice.cuts) for dims in self.read.values())
        return sum(phase.times * self._of_phase(phase, choice.placement, read) for phase in self.objective.phases)

    def _of_phase(self, phase: Phase, placement: Placement, read: int) -> float:
        weigher = self.weighers[phase]
        counter = Counter(placement, weigher)
        flops = math.fsum(weigher.sizing.number(counter.flops(node)) for node in counter.nodes)
        computing = max(flops / (self.machine.tflops_bf16 * 1e12), read * self.each / (self.machine.memory_gbps * 1e9))
        collectives = [c for c in weigher.collectives(placement) if phase.backward or c.phase == "forward"]
        passes = STEP if phase.backward else 1
        return passes * computing + waiting(placement, weigher, passes) + math.fsum(c.seconds for c in collectives)


def _read_whole(problem: UnitProblem) -> Mapping[str, tuple[Term, ...]]:
    """The dims of the parameters of which every call reads all, and not some rows."""
    nodes = {str(node.target): node for node in problem.graph.nodes if node.op == "get_attr"}
    facts = problem.typing.facts

    def is_table(name: str) -> bool:
        found = list(readers(nodes[name], problem.typing))
        return bool(found) and all(facts[reader].looks_up for reader in found)

    return {name: dims for name, dims in problem.parameters().items() if not is_table(name)}
