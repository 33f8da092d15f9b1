"""What a plan means for one rank at a batch and a sequence: memory, and time of computing and of communicating.

Times are lower bounds: arithmetic at the peak rate or weights at the memory's, whichever takes longer, unit by unit, and
collectives at the link's rate, one after the other. Nothing overlaps, so the share of communication is an upper bound of
what it costs where it can be hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .cost import Hardware, wire_bytes
from .formula import evaluate, sizes
from .plan import CollectivePlan, Plan, UnitPlan

if TYPE_CHECKING:
    from .work import Work

OPTIMIZER_BYTES = 12  # AdamW in mixed precision: a float32 copy of the weight and two float32 moments
GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank. Activations are what the backward needs; the cache is full: every position of every sequence."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    cache: float

    @property
    def training(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def serving(self) -> float:
        return self.weights + self.cache


@dataclass(frozen=True)
class Time:
    """Seconds of one phase on one rank."""

    compute: float
    communication: float

    @property
    def total(self) -> float:
        return self.compute + self.communication

    @property
    def share(self) -> float:
        """Communication as a fraction of the whole."""
        return self.communication / self.total if self.total else 0.0

    def __add__(self, other: Time) -> Time:
        return Time(self.compute + other.compute, self.communication + other.communication)


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank sends for one unit: a token forward, a token backward, and a step for shared parameters."""

    instances: tuple[str, ...]
    forward: float
    backward: float
    parameters: float


@dataclass(frozen=True)
class Estimate:
    """A plan at `batch` sequences of `sequence` tokens. `token` is the time of writing one more token of every sequence.

    `unknown` names units whose work is not known, with the reason: their activations and time are missing.
    """

    tp: int
    batch: int
    sequence: int
    hardware: str
    available: float
    memory: Memory
    forward: Time
    backward: Time
    token: Time
    traffic: tuple[Traffic, ...]
    unknown: tuple[str, ...] = ()

    @property
    def step(self) -> Time:
        return self.forward + self.backward

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence


def estimate(
    plan: Plan,
    works: Mapping[UnitPlan, Work],
    machine: Hardware,
    batch: int,
    sequence: int,
    unknown: tuple[str, ...] = (),
    serving: Plan | None = None,
) -> Estimate:
    """What a plan means for a rank. `works` may lack units; they count with their weights only. `serving` is the plan by which
    tokens are written, of the same units, where another one holds without a backward."""
    meter = Meter(plan, works, machine)
    written = (
        Meter(serving, {b: works[a] for a, b in zip(plan.units, serving.units, strict=True) if a in works}, machine)
        if serving
        else meter
    )
    all_at_once, one_more = sizes(batch, sequence), sizes(batch, 1, sequence)
    weights = plan.elements()[1] * plan.element_bytes
    optimizer = plan.elements()[1] * optimizer_bytes(plan.element_bytes)
    memory = Memory(weights, weights, optimizer, meter.saved(all_at_once), meter.cached(all_at_once))
    return Estimate(
        tp=plan.tp,
        batch=batch,
        sequence=sequence,
        hardware=machine.name,
        available=machine.memory_gib * GIB,
        memory=memory,
        forward=meter.time("forward", all_at_once),
        backward=meter.time("backward", all_at_once),
        token=written.time("forward", one_more, memory.cache),
        traffic=tuple(_traffics(plan, all_at_once, batch * sequence)),
        unknown=unknown,
    )


def optimizer_bytes(element_bytes: int) -> int:
    """Bytes that the optimizer keeps for an element of a weight: of float32 weights it needs no copy."""
    return OPTIMIZER_BYTES if element_bytes < 4 else OPTIMIZER_BYTES - 4


class Meter:
    """Sums over all units of a plan; a unit counts as often as it occurs."""

    def __init__(self, plan: Plan, works: Mapping[UnitPlan, Work], machine: Hardware) -> None:
        self.plan, self.works, self.machine = plan, works, machine

    def saved(self, values: dict[str, float]) -> float:
        return sum(len(unit.instances) * self.saved_by(unit, values) for unit in self.works)

    def saved_by(self, unit: UnitPlan, values: dict[str, float]) -> float:
        """Bytes that one instance of a unit keeps for the backward."""
        work = self.works.get(unit)
        return work.number(work.saved, values) if work is not None else 0.0

    def cached(self, values: dict[str, float]) -> float:
        return sum(len(unit.instances) * work.number(work.cached, values) for unit, work in self.works.items())

    def time(self, phase: str, values: dict[str, float], read: float = 0.0) -> Time:
        """Time of one phase; `read` bytes are read beside the weights."""
        compute = read / (self.machine.memory_gbps * 1e9)
        communication = 0.0
        for unit in self.plan.units:
            own = self.time_of(unit, phase, values)
            compute += len(unit.instances) * own.compute
            communication += len(unit.instances) * own.communication
        communication += self.time_around(phase, values)
        return Time(compute, communication)

    def time_of(self, unit: UnitPlan, phase: str, values: dict[str, float]) -> Time:
        """Time of one phase of one instance of a unit."""
        own = (c for c in unit.collectives if c.phase == phase)
        return Time(self._compute(unit, phase, values), sum(self._seconds(c, values) for c in own))

    def time_around(self, phase: str, values: dict[str, float]) -> float:
        """Seconds of what is sent where positions are cut and joined, in one phase."""
        return sum(self._seconds(c, values) for c in self.plan.around if c.phase == phase)

    def _compute(self, unit: UnitPlan, phase: str, values: dict[str, float]) -> float:
        """The backward computes two gradients for each product, and reads the weights as often."""
        times = 1 if phase == "forward" else 2
        work = self.works.get(unit)
        if work is None:
            weights = sum(p.local_elements for p in unit.parameters if p.placement != "vocabulary")
            return times * self.machine.computing(0.0, 0.0, weights * self.plan.element_bytes)
        flops, waits = work.number(work.flops, values), work.number(work.waits, values)
        return times * self.machine.computing(flops, waits, work.read * self.plan.element_bytes)

    def _seconds(self, collective: CollectivePlan, values: Mapping[str, float]) -> float:
        size = evaluate(collective.elements, values) * self.plan.element_bytes
        return self.machine.seconds(collective.kind, size, collective.ranks, together=len(collective.nodes) > 1)


def _traffics(plan: Plan, values: Mapping[str, float], tokens: int) -> Iterator[Traffic]:
    places = [(unit.instances, unit.collectives) for unit in plan.units]
    for instances, collectives in (*places, (("where positions are cut and joined",), plan.around)):
        if collectives:
            yield _traffic(instances, collectives, plan.element_bytes, values, tokens)


def _traffic(
    instances: tuple[str, ...],
    collectives: Sequence[CollectivePlan],
    element_bytes: int,
    values: Mapping[str, float],
    tokens: int,
) -> Traffic:
    found = dict.fromkeys(("forward", "backward", "parameter"), 0.0)
    for c in collectives:
        size = evaluate(c.elements, values) * element_bytes
        found["parameter" if c.of == "parameter" else c.phase] += wire_bytes(c.kind, size, c.ranks)
    return Traffic(instances, found["forward"] / tokens, found["backward"] / tokens, found["parameter"])
