"""What a rank has sent: the log that tests, benchmarks and `verify` compare with a plan."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CollectiveCall:
    """One collective that ran: what, when, over how many ranks, on how many elements of how many bytes. One of a forward ran
    `in_backward` where checkpointing runs a forward again, and where a gradient needs a result that was left cut."""

    kind: str
    phase: str
    of: str
    ranks: int
    elements: int
    element_bytes: int
    in_backward: bool = False


@dataclass(frozen=True)
class UnitCall:
    """One call of a unit: its path, and what it ran, None where it has no program for the call; and if it ran `in_backward`."""

    path: str
    ran: object
    in_backward: bool


@dataclass
class CollectiveLog:
    """The collectives that one rank ran, in order, and the calls of units that they were in; how many values were `computed` on
    parts of what units gave, each of which may be gathered by itself."""

    calls: list[CollectiveCall] = field(default_factory=list)
    units: list[UnitCall] = field(default_factory=list)
    computed: int = 0

    def count(self, phase: str, of: str = "activation") -> int:
        """How many collectives ran in one phase on activations or on parameters."""
        return sum(call.phase == phase and call.of == of for call in self.calls)
