"""What an inserted node does in each phase, and the bytes it moves: those of the plan's cost model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...axes.layout import parts_of
from ...placement.transition import Transition
from ...planner.weigh import Collective
from .data import Transfer


@dataclass(frozen=True)
class Transfers:
    """The priced collectives of one placement. `markers` are the nodes under which gathers of values are priced."""

    priced: Sequence[Collective]
    markers: Mapping[str, str]

    def of(self, what: Transition, name: str) -> Transfer:
        """The transfer of a node that was inserted for a value of this name."""
        priced = self._prices(what, name)
        prices = {c.phase: c for c in priced}
        forward, backward = kinds(what)
        if what.kind == "gather_positions":
            backward = ", ".join(c.kind.replace("_", "-") for c in priced if c.phase == "backward") or backward
        if what.kind == "all_gather" and "backward" in prices:
            scatters = prices["backward"].kind == "reduce_scatter"
            backward = "reduce-scatter" if scatters else "all-reduce, then slice"
        ahead, back = ([c for c in priced if c.phase == phase] for phase in ("forward", "backward"))
        formula = str(next((c.elements for c in prices.values()), ""))
        return Transfer(
            forward=forward,
            backward=backward,
            of=what.of,
            ranks=parts_of(what.over),
            over=tuple(map(str, what.over)),
            elements=formula.replace("**", "^").replace("*", "·"),
            forward_bytes=math.fsum(c.bytes for c in ahead),
            backward_bytes=math.fsum(c.bytes for c in back),
            forward_seconds=math.fsum(c.seconds for c in ahead),
            backward_seconds=math.fsum(c.seconds for c in back),
        )

    def _prices(self, what: Transition, name: str) -> list[Collective]:
        """What is sent for the step, forward and backward; what is gathered in place of a marker is priced under its name."""
        names = [name, *([self.markers[name]] if name in self.markers else [])]
        own = [part for c in self.priced for each in names if (part := c.only(each, what.alone)) is not None]
        return list({(part.kind, part.phase): part for part in reversed(own)}.values())[::-1]


_KINDS = {
    "slice": ("slice", "zeros around the slice"),
    "leave": ("identity", "counts once"),
    "once": ("counts once", "identity"),
    "own": ("zeros around own rows", "zeros around own rows"),
    "opened": ("identity", "identity"),
    "shut": ("identity", "identity"),
    "take_positions": ("slice", "all-gather"),
    "reduce_scatter": ("reduce-scatter", "all-gather"),
    "gather_positions": ("all-gather", "slice"),
}


def kinds(what: Transition) -> tuple[str, str]:
    """What an inserted node does forward and backward, in words."""
    if what.kind == "all_reduce":
        return ("all-reduce", "identity") if what.phase == "forward" else ("identity", "all-reduce")
    if what.kind in _KINDS:
        return _KINDS[what.kind]
    return ("gather when read" if what.phase == "deferred" else "all-gather"), "slice"


def main_kind(what: Transition) -> str:
    """What an inserted node is there for."""
    forward, backward = kinds(what)
    return backward if forward == "identity" else forward
