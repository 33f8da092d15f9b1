"""How to spread a node's processors over tensor and data parallelism: what fits, and what is fastest of that.

Training: every replica takes its share of the tokens, and afterwards the replicas sum their gradients. Serving: every
replica takes its share of the sequences and writes one token of each at a time, its cache full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import UsageError
from .cost import Hardware
from .estimate import Estimate
from .plan import Plan
from .spare import padded, shared

TRAIN, SERVE = "train", "serve"
ROOM = 0.9  # of the memory; the rest is for what is not counted: buffers, fragments, the collectives' own


@dataclass(frozen=True)
class Option:
    """One way: `tp` ranks a replica, `dp` replicas. `seconds` are those of a step, or of one token of every sequence.

    `padded` and `shared` name parameters that do not divide: padded with zeros, or held by several ranks alike.
    """

    tp: int
    dp: int
    batch: int
    sequence: int
    memory: float
    fits: bool
    compute: float
    communication: float
    gradients: float
    padded: tuple[str, ...]
    shared: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.compute + self.communication + self.gradients

    @property
    def sequences(self) -> int:
        """Sequences of all replicas together."""
        return self.batch * self.dp


@dataclass(frozen=True)
class Advice:
    """All ways, the best of them, and for what; `best` is None where nothing fits."""

    model: str
    purpose: str
    hardware: str
    available: float
    tokens: int
    options: tuple[Option, ...]
    best: Option | None

    def rate(self, option: Option) -> float:
        """Tokens a second of the whole node."""
        each = option.sequence if self.purpose == TRAIN else 1
        return option.sequences * each / option.seconds


def advise(
    made: Callable[[int, int], tuple[Plan, Estimate]], machine: Hardware, purpose: str, tokens: int, batch: int
) -> Advice:
    """The best use of a node. `made` plans and estimates a size with so many sequences a replica."""
    if batch < 1 or tokens % batch:
        raise UsageError(
            f"{tokens} tokens cannot be {batch} sequences of equal length; choose --batch so that it divides"
        )
    sizes = [tp for tp in range(1, machine.gpus + 1) if machine.gpus % tp == 0]
    options, model = [], ""
    for tp in sizes:
        dp = machine.gpus // tp
        plan, estimate = made(tp, -(-batch // dp))
        if estimate.unknown:
            raise UsageError(f"no advice for {plan.model}, a part of its work is not known: {estimate.unknown[0]}")
        model = plan.model
        options.append(_option(plan, estimate, machine, purpose, dp))
    fitting = [option for option in options if option.fits]
    advice = Advice(model, purpose, machine.name, estimate.available, tokens, tuple(options), None)
    return replace(advice, best=max(fitting, key=lambda option: _useful(advice, option, batch), default=None))


def _useful(advice: Advice, option: Option, batch: int) -> float:
    """Tokens a second that somebody asked for: replicas without a whole sequence of their own are no gain."""
    return advice.rate(option) * min(1.0, batch / option.sequences)


def _option(plan: Plan, found: Estimate, machine: Hardware, purpose: str, dp: int) -> Option:
    training = purpose == TRAIN
    time, memory = (found.step, found.memory.training) if training else (found.token, found.memory.serving)
    gradients = machine.seconds("all_reduce", found.memory.gradients, dp) if training else 0.0
    return Option(
        tp=plan.tp,
        dp=dp,
        batch=found.batch,
        sequence=found.sequence,
        memory=memory,
        fits=memory <= ROOM * found.available,
        compute=time.compute,
        communication=time.communication,
        gradients=gradients,
        padded=tuple(padded(plan)),
        shared=tuple(shared(plan)),
    )
