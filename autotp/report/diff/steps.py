"""The rows of a unit's difference, in the order in which a rank runs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from ...axes.annotation import annotation
from ...axes.layout import Factor
from ...placement.certificate.values import Gradient
from ...placement.placed import placed_as
from ...placement.typed import is_parameter
from ...planner.plan import UnitPlan
from .data import DimTerm, Step, Transfer, Value
from .graphs import Arguments, inputs_of, is_visible, operator_of, values_of
from .outline import number_blocks
from .reasons import LOCALISED, Reasons
from .sides import Held, Sides
from .transfers import Transfers, main_kind


def make_steps(sides: Sides, plan: UnitPlan, ranks: int) -> tuple[Step, ...]:
    """All rows of a unit, for a tensor-parallel size of so many ranks."""
    return number_blocks(tuple(_Steps(sides, plan, ranks).rows()))


class _Steps:
    def __init__(self, sides: Sides, plan: UnitPlan, ranks: int) -> None:
        self.sides, self.words, self.arguments = sides, sides.words, Arguments(sides.words)
        self.placements = {p.name: p.placement for p in plan.parameters}
        self.reasons = Reasons(sides, {p.name: p for p in plan.parameters}, ranks)
        self.transfers = Transfers(sides.priced, sides.markers)
        self.before = {node.name: node for node in sides.before.nodes if is_visible(node)}
        self.after = [node for node in sides.after.nodes if is_visible(node)]
        self.pairs = {node: name for node in self.after if (name := self._pair(node)) in self.before}
        self.names = self._names()
        self.inside = self._inside_layers()

    def _pair(self, node: torch.fx.Node) -> str:
        """The name of the traced node that a node of the graph after is; empty if it is none."""
        if node.op == "output":
            return next(name for name, other in self.before.items() if other.op == "output")
        if placed_as(node).made:
            return placed_as(node).stands_for
        return "" if placed_as(node).collective is not None else placed_as(node).origin

    def _names(self) -> dict[torch.fx.Node, str]:
        """The name of the row of every node: paired nodes share one."""
        names = {node: name for name, node in self.before.items()}
        for node in self.after:
            own = f"{node.name}_made" if node.name in self.before else node.name
            names[node] = self.pairs.get(node, own)
        return names

    def _inside_layers(self) -> dict[str, torch.fx.Node]:
        """Parameters that a layer reads by itself: their names before, with the call of the layer."""
        present = set(self.pairs.values())
        return {
            source.name: call
            for call in self.after
            if call.op == "call_module"
            for source in inputs_of(self.before[self.pairs[call]])
            if is_parameter(source) and source.name not in present
        }

    def rows(self) -> Iterator[Step]:
        """Rows in the order of the graph after; what is in a layer, or gone, stands where it was before."""
        waiting = {node.name: node for node in self.before.values()}
        for node in self.after:
            if self.pairs.get(node) in waiting:
                yield from self._only_before(waiting, self.pairs[node])
            yield self._row(node)
        yield from self._only_before(waiting, "")

    def _only_before(self, waiting: dict[str, torch.fx.Node], until: str) -> Iterator[Step]:
        """Rows of the nodes up to the one that comes next on both sides, without those that come later after."""
        present = set(self.pairs.values())
        for name in list(waiting):
            node = waiting.pop(name)
            if name == until:
                return
            if name in self.inside:
                yield self._parameter_inside(node)
            elif name not in present:
                yield self._removed(node)

    def _removed(self, node: torch.fx.Node) -> Step:
        value = self._before_value(node)
        dims = tuple(DimTerm(size, "", size, "whole") for size in (value.shapes[0] if value.shapes else ()))
        return self._step(node, Held(), value, None, dims, "none", (LOCALISED, "nothing reads it any more"))

    def _parameter_inside(self, node: torch.fx.Node) -> Step:
        """A parameter that the layer which took an operator's place reads by itself."""
        placed, fact = self.sides.facts[node.name]
        held = Held(self.sides.flow.held[placed])
        before = self._before_value(node)
        after = replace(before, shapes=(self.words.local_shape(placed.meta["val"], fact.dims, held.axes),))
        dims = self.words.dims(placed.meta["val"], fact.dims, held.axes)
        gradient, why = self._gradient(held, frozenset()), self.reasons.parameter(str(node.target))
        return self._step(node, held, before, after, dims, gradient, why)

    def _row(self, node: torch.fx.Node) -> Step:
        held = self.sides.held[node]
        traced = self.before.get(self.pairs.get(node, ""))
        before, after = self._before_value(traced) if traced is not None else None, self._after_value(node)
        by, why = self.reasons.of(node)
        if before is not None and before.arguments != after.arguments and node.op == "call_function":
            why += f". Its arguments are now those of the slice: {after.arguments or 'none'}"
        gradient = "none"
        if node.op != "output" and self.sides.placed(node)[0] in self.sides.flow.gradient:
            arriving = self.sides.certificate.gradients.get(node, Gradient())
            gradient = self._gradient(held, arriving.varies)
        return self._step(node, held, before, after, self._dims(node, held), gradient, (by, why))

    def _step(
        self,
        node: torch.fx.Node,
        held: Held,
        before: Value | None,
        after: Value | None,
        dims: tuple[DimTerm, ...],
        gradient: str,
        why: tuple[str, str],
    ) -> Step:
        return Step(
            name=self.names[node],
            change=_change(before, after),
            role=self._role(node),
            state=held.state,
            module=self._module(node),
            block=0,
            before=before,
            after=after,
            dims=dims,
            axes=self.words.letters(held.axes | held.summed),
            gradient=gradient,
            transfer=self._transfer(node),
            by=why[0],
            why=why[1],
        )

    def _gradient(self, held: Held, parts: frozenset[Factor]) -> str:
        if parts:
            return f"a part of the sum over {self.reasons.ranks(parts)}"
        return "a slice, as the value is" if held.axes else "the same on every rank"

    def _dims(self, node: torch.fx.Node, held: Held) -> tuple[DimTerm, ...]:
        if node.op == "output":
            return ()
        placed, fact = self.sides.placed(node)
        values = values_of(placed)
        return self.words.dims(values[0], fact.dims, held.axes) if len(fact.outputs) == len(values) == 1 else ()

    def _before_value(self, node: torch.fx.Node) -> Value:
        shapes = tuple(self.words.shape(value) for value in values_of(node))
        inputs = tuple(dict.fromkeys(self.names[source] for source in inputs_of(node)))
        return Value(_shown_name(node), operator_of(node), self.arguments.of(node), inputs, shapes)

    def _after_value(self, node: torch.fx.Node) -> Value:
        inputs = [self.names[source] for source in inputs_of(node)]
        inputs += [name for name, call in self.inside.items() if call is node]
        transition = placed_as(node).transition
        operator = self.sides.operator(node) if transition is None else main_kind(transition)
        arguments, shapes = self.arguments.of(node), tuple(self._local_shapes(node))
        return Value(_shown_name(node), operator, arguments, tuple(dict.fromkeys(inputs)), shapes)

    def _local_shapes(self, node: torch.fx.Node) -> Iterator[tuple[str, ...]]:
        if node.op != "output":
            placed, fact = self.sides.placed(node)
            for value, dims in zip(values_of(placed), fact.outputs, strict=True):
                yield self.words.local_shape(value, dims, self.sides.held[node].axes)

    def _module(self, node: torch.fx.Node) -> str:
        """The path of the module that a node runs in; of one that is inserted, that of the value it is about."""
        if node.op in ("placeholder", "output"):
            return ""
        if node.op == "get_attr":
            return str(node.target).rpartition(".")[0]
        if placed_as(node).collective is not None:
            return self._module(self.sides.source(node))
        return str(node.target) if node.op == "call_module" else annotation(node).module

    def _role(self, node: torch.fx.Node) -> str:
        if placed_as(node).collective is not None:
            return "collective"
        if node.op in ("placeholder", "get_attr", "output"):
            return "output" if node.op == "output" else operator_of(node)
        if placed_as(node).made:
            return "operator"
        origin = self.before[self.pairs.get(node, node.name)]
        if origin.name in self.sides.facts and self.sides.facts[origin.name][1].attends:
            return "attention"
        placements = [self.placements.get(str(s.target), "") for s in inputs_of(origin) if is_parameter(s)]
        return next((p for p in placements if p in ("row", "vocabulary", "expert", "column")), "operator")

    def _transfer(self, node: torch.fx.Node) -> Transfer | None:
        transition = placed_as(node).transition
        if transition is None:
            return None
        others = tuple(self.names[other] for other in placed_as(node).together)
        return replace(self.transfers.of(transition, self._priced_name(node)), together=others)

    def _priced_name(self, node: torch.fx.Node) -> str:
        return self.sides.placed(node)[0].name


def _shown_name(node: torch.fx.Node) -> str:
    return str(node.target) if node.op in ("get_attr", "call_module") else node.name


def _change(before: Value | None, after: Value | None) -> str:
    if before is None or after is None:
        return "inserted" if before is None else "removed"
    if before.operator != after.operator:
        return "replaced"
    same = (before.shapes, before.arguments) == (after.shapes, after.arguments)
    return "same" if same or before.operator == "output" else "shape"
