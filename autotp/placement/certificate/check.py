"""One loop forward over a program, and one backward: every edge is legal, or the program is refused.

An operator is judged by its fact, a node between values by its record (`rows` in `operators` and `transitions`). Nothing else is
read: not where placement wanted a node, nor why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from ...axes.annotation import annotation
from ...axes.call import writes_aside, written_by
from ...axes.facts import Fact
from ...errors import PlacementError
from ..placed import fact_of, placed_as
from ..transition import VIEWS
from ..typed import gives_gradient, is_parameter
from .operators import Operator
from .program import check_name, factors_of, operands_of, shared_memory, title_of, work_of
from .transitions import BACKWARD, FORWARD, Step
from .values import NONE, Contract, Gradient, Illegal, Mesh, Value, text


@dataclass
class Certificate:
    """What a rank has of every value of a legal program, and of every gradient that there may be."""

    values: dict[torch.fx.Node, Value] = field(default_factory=dict)
    gradients: dict[torch.fx.Node, Gradient] = field(default_factory=dict)


def certify(graph: torch.fx.Graph, contract: Contract) -> Certificate:
    """Check a program, each node of which has the record of what it is (`placed_as`).

    Raises PlacementError naming the first node that is not legal, and the value.
    """
    checker = _Checker(graph, contract)
    for node in graph.nodes:
        checker.at(node, checker.forward)
    if contract.backward:
        for node in reversed(graph.nodes):
            checker.at(node, checker.backward)
    return checker.found


class _Checker:
    def __init__(self, graph: torch.fx.Graph, contract: Contract) -> None:
        records = [placed_as(node).collective for node in graph.nodes]
        self.mesh = Mesh(contract, {over for record in records if record is not None for over in factors_of(record)})
        self.contract, self.found = contract, Certificate()
        self.known: dict[str, Value] = {}
        self.steps: dict[torch.fx.Node, Step] = {}
        self.operators: dict[torch.fx.Node, tuple[Operator, list[torch.fx.Node | None]]] = {}
        self.arriving: dict[torch.fx.Node, list[tuple[torch.fx.Node, Gradient]]] = {}
        self.recording = True
        self.memory = shared_memory(graph)
        # How often memory was written so far, and when what was copied from it was copied.
        self.writes: Counter[torch.fx.Node] = Counter()
        self.copied: dict[torch.fx.Node, tuple[torch.fx.Node, int]] = {}

    def at(self, node: torch.fx.Node, check: Callable[[torch.fx.Node], None]) -> None:
        try:
            check(node)
        except Illegal as problem:
            raise PlacementError(f"{title_of(node)} {problem}") from None

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self, node: torch.fx.Node) -> None:
        self._is_up_to_date(node)
        if node.target is torch._C._set_grad_enabled:
            self.recording = bool(node.args[0])
        elif node.op == "output":
            for value in self._read(node):
                _leaves(value)
        elif placed_as(node).transition is not None:
            self._transition(node)
        elif placed_as(node).fact is not None:
            self._operator(node, fact_of(node))
        elif placed_as(node).made:
            self._set(node, self._value(node.args[0]))

    def _is_up_to_date(self, node: torch.fx.Node) -> None:
        """What a node between values has copied from memory is read before that memory is written again."""
        for source in node.all_input_nodes:
            place, times = self.copied.get(source, (None, 0))
            if place is not None and times != self.writes[place]:
                raise Illegal(f"reads {source.name}, which was copied before its memory was written")
        if (writes := annotation(node).writes) is not None:
            self.writes[self.memory[node if node in self.memory else writes[0]]] += 1
        elif (record := placed_as(node).collective) is not None and node not in self.memory:
            for source in node.all_input_nodes:
                if source in self.copied:
                    self.copied[node] = self.copied[source]
                elif source in self.memory and record.does not in VIEWS:
                    self.copied[node] = self.memory[source], self.writes[self.memory[source]]

    def _set(self, node: torch.fx.Node, value: Value) -> None:
        self.found.values[node] = value

    def _value(self, node: object) -> Value:
        if not isinstance(node, torch.fx.Node) or node not in self.found.values:
            raise Illegal(f"reads {node}, of which nothing is known")
        return self.found.values[node]

    def _read(self, node: torch.fx.Node) -> list[Value]:
        return [self.found.values[source] for source in node.all_input_nodes if source in self.found.values]

    def _transition(self, node: torch.fx.Node) -> None:
        source, record, others = work_of(node)
        step = Step(self.mesh, record, self._value(source), [self._value(other) for other in others])
        if step.value.shut and record.does != "opened":
            raise Illegal(f"reads {step.value.name}, which is as whoever gets the unit's results has it")
        value = FORWARD[record.does](step)
        if placed_as(node).marks:  # the last dim behind a marker is an unknown of its own
            fact = fact_of(node)
            check_name(value, fact.operands[0])
            value = replace(value, name=placed_as(node).marks, outputs=fact.outputs)
        self.steps[node] = step
        self._set(node, replace(self.mesh.settled(value), wants=step.value.wants and self.recording))

    def _operator(self, node: torch.fx.Node, fact: Fact) -> None:
        name = placed_as(node).origin
        if node.op in ("placeholder", "get_attr"):
            value = self._given(node, fact)
        else:
            sources = operands_of(node, fact)
            operands = [self._given(own, fact_of(own)) if at is None else self._value(at) for own, at in sources]
            for (own, at), operand in zip(sources, operands, strict=True):
                if at is not None:
                    check_name(operand, own)
            op = Operator(self.mesh, node, fact, operands, self.known)
            self.operators[node] = op, [at for _, at in sources]
            value = op.forward()
            wants = self.recording and gives_gradient(node, fact) and any(operand.wants for operand in operands)
            value = replace(value, wants=wants or self._is_given(node) or self._keeps_gradient(node))
        self.known[name] = value
        self._set(node, value)
        if value.wants and annotation(node).writes is not None and node in self.memory:
            for shared in [each for each, own in self.memory.items() if own is self.memory[node]]:
                if shared in self.found.values:
                    self._set(shared, replace(self.found.values[shared], wants=True))

    def _given(self, node: torch.fx.Node, fact: Fact) -> Value:
        """What a rank has of an input or a parameter: its part of those that are cut, the positions of what comes so."""
        axes = self.mesh.axes_in(fact.outputs)
        value = Value(placed_as(node).origin, fact.outputs, wants=self._is_given(node))
        if is_parameter(node):
            value = replace(value, axes=axes & self.contract.cuts.keys())
        elif node.target == self.contract.source:
            value = replace(value, axes=axes & {self.contract.positions}, shut=True)
        return self.mesh.settled(value)

    def _keeps_gradient(self, node: torch.fx.Node) -> bool:
        """Returns if a step writes without gradients into what has one: that stays as it is."""
        into = written_by(node) if not self.recording and not writes_aside(node) else []
        return any(each in self.found.values and self.found.values[each].wants for each in into)

    def _is_given(self, node: torch.fx.Node) -> bool:
        return self.contract.backward and annotation(node).gradient

    # -- backward --------------------------------------------------------------------------------------------------

    def backward(self, node: torch.fx.Node) -> None:
        value = self.found.values.get(node)
        if node.op == "output" or (value is not None and not value.outputs):
            for source in node.all_input_nodes:
                if source in self.found.values:
                    self._arrive(source, node, Gradient(self.found.values[source].uneven))
            return
        gradient = self._gradient(node)
        if value is None or gradient is None or not value.wants:
            return
        self.found.gradients[node] = gradient
        if annotation(node).gradient and (varying := gradient.varies - (NONE if is_parameter(node) else value.uneven)):
            raise Illegal(f"has a gradient of which each rank has only its part over {text(varying)}")
        if node in self.steps:
            source, record, _ = work_of(node)
            self._arrive(source, node, BACKWARD[record.does](self.steps[node], gradient))
        elif node in self.operators:
            op, read = self.operators[node]
            for place, operand in enumerate(read):
                self._through(node, op, place, operand, gradient)
        elif placed_as(node).made:
            self._arrive(cast(torch.fx.Node, node.args[0]), node, gradient)

    def _through(
        self, node: torch.fx.Node, op: Operator, place: int, source: torch.fx.Node | None, gradient: Gradient
    ) -> None:
        if not op.operands[place].wants:
            return
        own = op.backward(self.found.values[node], gradient, place)
        if source is not None:
            self._arrive(source, node, own)
        elif own.varies:
            raise Illegal(f"gives {op.operands[place].name} a gradient of which each rank has only its part")

    def _arrive(self, source: torch.fx.Node, reader: torch.fx.Node, gradient: Gradient) -> None:
        if self.found.values[source].wants:
            self.arriving.setdefault(self.memory.get(source, source), []).append((reader, gradient))

    def _gradient(self, node: torch.fx.Node) -> Gradient | None:
        """What arrives, which must be one thing from all who read a value."""
        arriving = self.arriving.get(self.memory.get(node, node), [])
        for reader, gradient in arriving[1:]:
            if gradient != arriving[0][1]:
                differing = gradient.varies ^ arriving[0][1].varies
                raise Illegal(
                    f"has a gradient that varies over {text(differing)} by way of {title_of(reader)} or of "
                    f"{title_of(arriving[0][0])}, and does not by way of the other"
                )
        return arriving[0][1] if arriving else None


def _leaves(value: Value) -> None:
    """What leaves a unit is whole, or as whoever gets it takes it."""
    if value.shut:
        return
    how = (
        "a slice" if value.axes else "a partial sum" if value.partial else "with rows of no use" if value.routed else ""
    )
    if how:
        raise Illegal(f"hands on {value.name}, which is {how}")
