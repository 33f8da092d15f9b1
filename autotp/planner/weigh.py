"""What a placement costs: every collective with its size, its bytes on the wire and its time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import sympy
import torch

from ..axes.layout import Cuts, Factor, layout_of, ordered, parts_of
from ..axes.term import Axis, Term
from ..placement.flow import Flow
from ..placement.place import Placement
from ..placement.typed import factors_in, is_parameter
from .cost import Hardware, Sizing, Workload, wire_bytes


@dataclass(frozen=True)
class Collective:
    """One collective of a placement. `elements` are those of the whole value that is summed or gathered."""

    kind: str
    phase: str
    of: str
    node: str
    over: tuple[Factor, ...]
    elements: sympy.Expr
    bytes: float
    seconds: float


class Weigher:
    """Prices collectives of one unit on one kind of hardware at one workload."""

    def __init__(self, graph: torch.fx.Graph, machine: Hardware, workload: Workload) -> None:
        self.machine, self.workload, self.sizing = machine, workload, Sizing(graph, workload)

    def price(self, kind: str, node: torch.fx.Node, ranks: int, share: float) -> float:
        """Seconds of one collective on a node's value, of which a rank holds this share."""
        elements = self.sizing.number(self.sizing.elements(node.meta["val"])) * share
        return self.machine.seconds(kind, elements * self.workload.element_bytes, ranks)

    def _seconds(self, kind: str, elements: sympy.Expr, ranks: int) -> float:
        return self.machine.seconds(kind, self.sizing.number(elements) * self.workload.element_bytes, ranks)

    def seconds(self, placement: Placement) -> float:
        """Time of all collectives of one step of a unit."""
        return sum(collective.seconds for collective in self.collectives(placement))

    def collectives(self, placement: Placement) -> Iterator[Collective]:
        """Every collective of one forward and backward of a unit."""
        flow, facts, cut = placement.flow, placement.typed.facts, placement.sequence
        scattered = {scatter.node: scatter.over for scatter in placement.backward.scatters}
        for node, over in flow.reduces().items():
            if cut is None or not cut.is_cut((node, True)):
                yield self._one(
                    "all_reduce", "forward", "activation", node, over, self.local_elements(flow, node, facts[node].dims)
                )
        for node, axes in flow.gathers.items():
            over = factors_in(axes, flow.cuts)
            yield self._one(
                "all_gather", "forward", "activation", node, over, self._gathered(flow, node, facts[node].dims)
            )
        for node, fact in facts.items():
            if fact.collects and flow.held[fact.operands[0]]:
                over = factors_in(flow.held[fact.operands[0]], flow.cuts)
                size = self.sizing.elements(node.meta["val"])
                yield self._one("all_gather", "forward", "activation", node, over, size)
                if scattered.get(node):
                    kind = "reduce_scatter" if scattered[node] == over else "all_reduce"
                    yield self._one(kind, "backward", "activation", node, scattered[node], size)
        yield from self._around_positions(placement)
        for enter in placement.backward.enters:
            if cut is not None and cut.is_cut((enter.node, enter.reduced)):
                continue  # what gathers the value sums its gradient
            of = "parameter" if is_parameter(enter.node) else "activation"
            local = self.local_elements(flow, enter.node, facts[enter.node].dims)
            yield self._one("all_reduce", "backward", of, enter.node, enter.over, local)
        for part in placement.backward.part_sums:
            local = self.local_elements(flow, part.node, facts[part.node].dims)
            share = layout_of(facts[part.node].dims[part.dim], flow.cuts).local_size
            elements = local * sympy.Rational(len(part.positions), share)
            yield self._one("all_reduce", "backward", "parameter", part.node, part.over, elements)

    def _around_positions(self, placement: Placement) -> Iterator[Collective]:
        """The collectives that a cut over positions adds: in place of sums, before chains, and of parameters' gradients."""
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
        for node, of in cut.sums.items():
            yield self.of_whole("all_reduce", "backward", node, over, of)

    def of_whole(
        self, kind: str, phase: str, node: torch.fx.Node, over: frozenset[Factor], of: str = "activation"
    ) -> Collective:
        """A collective on all of a value."""
        return self._one(kind, phase, of, node, over, self.sizing.elements(node.meta["val"]))

    def _one(
        self, kind: str, phase: str, of: str, node: torch.fx.Node, over: frozenset[Factor], elements: sympy.Expr
    ) -> Collective:
        factors = ordered(over)
        ranks = parts_of(factors)
        size = wire_bytes(kind, self.sizing.number(elements) * self.workload.element_bytes, ranks)
        return Collective(kind, phase, of, node.name, factors, elements, size, self._seconds(kind, elements, ranks))

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
