"""What a placement costs: every collective with its size, its bytes on the wire and its time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from ..axes.layout import Factor, Factors, parts_of
from ..placement.backward import Values
from ..placement.calls import Together
from ..placement.place import Placement, Waits
from ..placement.sizes import step_share
from ..placement.steps import Step
from ..placement.transition import Transition
from .cost import Hardware, Workload, wire_bytes
from .sizing import Sizing


@dataclass(frozen=True)
class Part:
    """What one step sends: the node that it is about, what it does, the elements of all of it, and its bytes on the wire."""

    node: str
    record: Transition
    elements: sympy.Expr
    bytes: float


@dataclass(frozen=True)
class Collective:
    """One collective of a placement; one call sends all its parts."""

    kind: str
    phase: str
    of: str
    parts: tuple[Part, ...]
    over: tuple[Factor, ...]
    seconds: float

    @property
    def elements(self) -> sympy.Expr:
        """The elements of all of the values."""
        return sympy.Add(*(part.elements for part in self.parts))

    @property
    def bytes(self) -> float:
        """The bytes on the wire."""
        return math.fsum(part.bytes for part in self.parts)

    def only(self, node: str, record: Transition) -> Collective | None:
        """What it sends for one step, with that part of the time; None if it sends nothing for it."""
        own = tuple(part for part in self.parts if (part.node, part.record) == (node, record))[:1]
        if own in ((), self.parts):
            return self if own else None
        return replace(self, parts=own, seconds=self.seconds * own[0].bytes / self.bytes)


class Weigher:
    """Prices collectives of one unit on one kind of hardware at one workload; units weighed with it may share `waits`."""

    def __init__(
        self, graph: torch.fx.Graph, machine: Hardware, workload: Workload, waits: Waits | None = None
    ) -> None:
        self.machine, self.workload, self.sizing = machine, workload, Sizing(graph, workload)
        self.waits: Waits = {} if waits is None else waits
        self._numbers: dict[tuple[object, ...], float] = {}  # of elements, by shapes

    def price(self, kind: str, values: Values, ranks: int) -> float:
        """Seconds of one collective on the values of some nodes, of each of which a rank holds a share."""
        elements = math.fsum(self._number(node) * share for node, share in values)
        return self._seconds(kind, elements, ranks, together=len(values) > 1)

    def _number(self, node: torch.fx.Node) -> float:
        value = node.meta["val"]
        key = value.is_complex(), *(size if isinstance(size, int) else size.node.expr for size in value.shape)
        if key not in self._numbers:
            self._numbers[key] = self.sizing.number(self.sizing.elements(value))
        return self._numbers[key]

    def _seconds(self, kind: str, elements: float, ranks: int, *, together: bool) -> float:
        return self.machine.seconds(kind, elements * self.workload.element_bytes, ranks, together=together)

    def seconds(self, placement: Placement) -> float:
        """Time of all collectives of one step of a unit."""
        return sum(collective.seconds for collective in self.collectives(placement))

    def collectives(self, placement: Placement) -> Iterator[Collective]:
        """Every collective of one forward and backward of a unit, those of the forward first."""
        found = [each for call in placement.calls for each in self._of_call(placement, call)]
        yield from sorted(found, key=lambda collective: collective.phase == "backward")

    def _of_call(self, placement: Placement, call: Together) -> Iterator[Collective]:
        """What one call sends, forward and backward."""
        typed, flow, record = placement.typed, placement.flow, call[0].record
        sent = {step: self.sizing.share(step.about.meta["val"], step_share(typed, flow, step)) for step in call}
        for sending in record.sends(gradient=call[0].about in flow.gradient):
            yield self._one(sending.kind, sending.phase, record.of, sent, sending.over)

    def of_positions(self, placement: Placement, kind: str, phase: str) -> Collective:
        """What puts together the value that a unit hands on, cut over its positions."""
        cut = placement.sequence
        assert cut is not None
        step = Step(Transition("shut", cut.over), cut.result, about=cut.result)
        return self._one(kind, phase, "activation", {step: self.sizing.elements(cut.result.meta["val"])}, cut.over)

    def _one(self, kind: str, phase: str, of: str, sent: Mapping[Step, sympy.Expr], over: Factors) -> Collective:
        ranks, numbers = parts_of(over), {step: self.sizing.number(elements) for step, elements in sent.items()}
        parts = tuple(
            Part(
                step.about.name, step.record, sent[step], wire_bytes(kind, number * self.workload.element_bytes, ranks)
            )
            for step, number in numbers.items()
        )
        seconds = self._seconds(kind, math.fsum(numbers.values()), ranks, together=len(parts) > 1)
        return Collective(kind, phase, of, parts, over, seconds)
