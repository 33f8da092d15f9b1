"""What a placement costs: every collective with its size, its bytes on the wire and its time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from ..axes.layout import Cuts, Factor, layout_of, ordered, parts_of
from ..axes.term import Axis, Term
from ..placement.backward import Values
from ..placement.calls import Together, scatter_kind
from ..placement.place import Placement
from ..placement.state import Flow
from ..placement.typed import factors_in
from .cost import Hardware, Workload, wire_bytes
from .sizing import Sizing


@dataclass(frozen=True)
class Part:
    """One value that a collective sums or gathers: its node, the elements of all of it, and its bytes on the wire."""

    node: str
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

    def only(self, node: str) -> Collective | None:
        """What it sends of one node's value, with that part of the time; None if it sends nothing of it."""
        own = tuple(part for part in self.parts if part.node == node)
        if own in ((), self.parts):
            return self if own else None
        return replace(self, parts=own, seconds=self.seconds * own[0].bytes / self.bytes)


class Weigher:
    """Prices collectives of one unit on one kind of hardware at one workload."""

    def __init__(self, graph: torch.fx.Graph, machine: Hardware, workload: Workload) -> None:
        self.machine, self.workload, self.sizing = machine, workload, Sizing(graph, workload)

    def price(self, kind: str, values: Values, ranks: int) -> float:
        """Seconds of one collective on the values of some nodes, of each of which a rank holds a share."""
        elements = math.fsum(self._number(node) * share for node, share in values)
        return self._seconds(kind, elements, ranks, together=len(values) > 1)

    def _number(self, node: torch.fx.Node) -> float:
        return self.sizing.number(self.sizing.elements(node.meta["val"]))

    def _seconds(self, kind: str, elements: float, ranks: int, *, together: bool) -> float:
        return self.machine.seconds(kind, elements * self.workload.element_bytes, ranks, together=together)

    def seconds(self, placement: Placement) -> float:
        """Time of all collectives of one step of a unit."""
        return sum(collective.seconds for collective in self.collectives(placement))

    def collectives(self, placement: Placement) -> Iterator[Collective]:
        """Every collective of one forward and backward of a unit."""
        flow, facts = placement.flow, placement.typed.facts
        for call in (call for call in placement.calls if call[0].phase == "forward"):
            yield from self._together(placement, call)
        for node, axes in flow.gathers.items():
            over = factors_in(axes, flow.cuts)
            gathered = self._gathered(flow, node, facts[node].dims)
            yield self._one("all_gather", "forward", "activation", {node: gathered}, over)
        yield from self._around_positions(placement)
        for call in (call for call in placement.calls if call[0].phase == "backward"):
            yield from self._together(placement, call)
        for part in placement.backward.part_sums:
            local = self.local_elements(flow, part.node, facts[part.node].dims)
            share = layout_of(facts[part.node].dims[part.dim], flow.cuts).local_size
            elements = local * sympy.Rational(len(part.positions), share)
            yield self._one("all_reduce", "backward", "parameter", {part.node: elements}, part.over)

    def _together(self, placement: Placement, call: Together) -> Iterator[Collective]:
        """One call, and the one of its backward."""
        first, facts = call[0], placement.typed.facts
        sizes = {
            sent.node: self.sizing.elements(sent.node.meta["val"])
            if first.kind == "all_gather"
            else self.local_elements(placement.flow, sent.node, facts[sent.node].dims)
            for sent in call
        }
        yield self._one(first.kind, first.phase, first.of, sizes, first.over)
        if first.scattered:
            yield self._one(scatter_kind(first), "backward", first.of, sizes, first.scattered)

    def _around_positions(self, placement: Placement) -> Iterator[Collective]:
        """The collectives of values that are cut over positions: in place of sums, and before chains."""
        cut, facts = placement.sequence, placement.typed.facts
        if cut is None:
            return
        over, gradient = frozenset(cut.over), placement.flow.gradient
        for node in [node for node in facts if node in cut.scattered]:
            yield self.of_whole("reduce_scatter", "forward", node, over)
            if node in gradient:
                yield self.of_whole("all_gather", "backward", node, over)
        for version, summed in cut.gathers.items():
            node = version[0]
            yield self.of_whole("all_gather", "forward", node, over)
            if version in cut.again:
                yield self.of_whole("all_gather", "backward", node, over)
            if node in gradient and summed:
                everywhere = parts_of(ordered(summed)) == parts_of(cut.over)
                kind, among = ("reduce_scatter", over) if everywhere else ("all_reduce", summed)
                yield self.of_whole(kind, "backward", node, among)
        for node in [node for node in facts if node in gradient and {(node, False), (node, True)} & cut.slices]:
            yield self.of_whole("all_gather", "backward", node, over)

    def of_whole(self, kind: str, phase: str, node: torch.fx.Node, over: frozenset[Factor]) -> Collective:
        """A collective on all of a value."""
        return self._one(kind, phase, "activation", {node: self.sizing.elements(node.meta["val"])}, over)

    def _one(
        self, kind: str, phase: str, of: str, sizes: Mapping[torch.fx.Node, sympy.Expr], over: frozenset[Factor]
    ) -> Collective:
        factors = ordered(over)
        ranks, numbers = parts_of(factors), {node: self.sizing.number(elements) for node, elements in sizes.items()}
        parts = tuple(
            Part(node.name, sizes[node], wire_bytes(kind, number * self.workload.element_bytes, ranks))
            for node, number in numbers.items()
        )
        seconds = self._seconds(kind, math.fsum(numbers.values()), ranks, together=len(parts) > 1)
        return Collective(kind, phase, of, parts, factors, seconds)

    def local_elements(self, flow: Flow, node: torch.fx.Node, dims: tuple[Term, ...]) -> sympy.Expr:
        """Elements of a value on one rank, as a formula."""
        return self._scaled(node, dims, {axis: flow.cuts[axis] for axis in flow.held[node]})

    def _gathered(self, flow: Flow, node: torch.fx.Node, dims: tuple[Term, ...]) -> sympy.Expr:
        """Elements of a value that is put together from all ranks' slices, padding included."""
        cuts: dict[Axis, object] = {axis: flow.cuts[axis] for axis in flow.gathers[node]}
        return self.local_elements(flow, node, dims) * math.prod(parts_of(flow.cuts[axis].over) for axis in cuts)

    def _scaled(self, node: torch.fx.Node, dims: tuple[Term, ...], cuts: Cuts) -> sympy.Expr:
        elements = self.sizing.elements(node.meta["val"])
        for term in dims:
            layout = layout_of(term, cuts)
            elements = elements * sympy.Rational(layout.local_size, layout.size)
        return elements
