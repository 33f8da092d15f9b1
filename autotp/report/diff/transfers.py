"""What an inserted node does in each phase, and the bytes it moves: those of the plan's cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...axes.layout import parts_of
from ...planner.weigh import Collective
from ...rewrite.insert import Inserted
from .data import Transfer


@dataclass(frozen=True)
class Transfers:
    """The priced collectives of one placement. `markers` are the nodes under which gathers of values are priced."""

    priced: Sequence[Collective]
    markers: Mapping[str, str]

    def of(self, what: Inserted, name: str) -> Transfer:
        """The transfer of a node that was inserted for a value of this name."""
        prices = {c.phase: c for c in self._prices(what, name)}
        forward, backward = kinds(what)
        if what.kind == "all_gather" and "backward" in prices:
            scatters = prices["backward"].kind == "reduce_scatter"
            backward = "reduce-scatter" if scatters else "all-reduce, then slice"
        ahead, back = prices.get("forward"), prices.get("backward")
        formula = str(next((c.elements for c in prices.values()), ""))
        return Transfer(
            forward=forward,
            backward=backward,
            of=what.of,
            ranks=parts_of(what.over),
            over=tuple(map(str, what.over)),
            elements=formula.replace("**", "^").replace("*", "·"),
            forward_bytes=ahead.bytes if ahead else 0.0,
            backward_bytes=back.bytes if back else 0.0,
            forward_seconds=ahead.seconds if ahead else 0.0,
            backward_seconds=back.seconds if back else 0.0,
        )

    def _prices(self, what: Inserted, name: str) -> list[Collective]:
        if what.kind in ("slice", "leave", "once", "own") or what.phase == "deferred":
            return []
        if what.kind == "all_gather":
            marker = self.markers.get(name)
            gathers = [c for c in self.priced if c.node == name and c.kind == "all_gather"]
            return gathers or [c for c in self.priced if c.node == marker]
        same = (what.kind, what.phase, what.of, name, what.over)
        return [c for c in self.priced if (c.kind, c.phase, c.of, c.node, c.over) == same][:1]


def kinds(what: Inserted) -> tuple[str, str]:
    """What an inserted node does forward and backward, in words."""
    if what.kind == "all_reduce":
        return ("all-reduce", "identity") if what.phase == "forward" else ("identity", "all-reduce")
    if what.kind == "slice":
        return "slice", "zeros around the slice"
    if what.kind == "leave":
        return "identity", "counts once"
    if what.kind == "once":
        return "counts once", "identity"
    if what.kind == "own":
        return "zeros around own rows", "zeros around own rows"
    return ("gather when read" if what.phase == "deferred" else "all-gather"), "slice"


def main_kind(what: Inserted) -> str:
    """What an inserted node is there for."""
    forward, backward = kinds(what)
    return backward if forward == "identity" else forward
