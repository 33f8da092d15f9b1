"""What a rank has sent: the log that tests, benchmarks and `verify` compare with a plan."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CollectiveCall:
    """One collective that ran: what, when, over how many ranks, on how many elements of how many bytes."""

    kind: str
    phase: str
    of: str
    ranks: int
    elements: int
    element_bytes: int


@dataclass
class CollectiveLog:
    """The collectives that one rank ran, in order."""

    calls: list[CollectiveCall] = field(default_factory=list)

    def count(self, phase: str, of: str = "activation") -> int:
        """How many collectives ran in one phase on activations or on parameters."""
        return sum(call.phase == phase and call.of == of for call in self.calls)
