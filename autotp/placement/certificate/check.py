"""One loop forward over a program, and one backward: every edge is legal, or the program is refused.

An operator is judged by its fact, a node between values by its record (`rows` in `operators` and `transitions`). Nothing else is
read: not where placement wanted a node, nor why.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from ...axes.call import is_tensor, named_arguments
from ...axes.facts import Fact
from ...axes.layout import Factors
from ...errors import PlacementError
from ..transition import VIEWS, Joined, Transition
from ..typed import gives_gradient, is_parameter
from .operators import Operator
from .transitions import BACKWARD, FORWARD, Step
from .values import NONE, Contract, Gradient, Illegal, Mesh, Value, text


@dataclass
class Certificate:
    """What a rank has of every value of a legal program, and of every gradient that there may be."""

    values: dict[torch.fx.Node, Value] = field(default_factory=dict)
    gradients: dict[torch.fx.Node, Gradient] = field(default_factory=dict)


def certify(graph: torch.fx.Graph, contract: Contract) -> Certificate:
    """Check a program. Its operators have their facts in `meta["fact"]`, and in `meta["origin"]` the placed node that they are.

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
        records = [node.meta["collective"] for node in graph.nodes if "collective" in node.meta]
        self.mesh = Mesh(contract, {over for record in records for over in _factors(record)})
        self.contract, self.found = contract, Certificate()
        self.known: dict[str, Value] = {}
        self.steps: dict[torch.fx.Node, Step] = {}
        self.operators: dict[torch.fx.Node, tuple[Operator, list[torch.fx.Node | None]]] = {}
        self.arriving: dict[torch.fx.Node, list[tuple[torch.fx.Node, Gradient]]] = {}
        self.recording = True
        self.memory = _shared(graph)
        # How often memory was written so far, and when what was copied from it was copied.
        self.writes: Counter[torch.fx.Node] = Counter()
        self.copied: dict[torch.fx.Node, tuple[torch.fx.Node, int]] = {}

    def at(self, node: torch.fx.Node, check: Callable[[torch.fx.Node], None]) -> None:
        try:
            check(node)
        except Illegal as problem:
            raise PlacementError(f"{_named(node)} {problem}") from None

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self, node: torch.fx.Node) -> None:
        self._is_up_to_date(node)
        if node.target is torch._C._set_grad_enabled:
            self.recording = bool(node.args[0])
        elif node.op == "output":
            for value in self._read(node):
                _leaves(value)
        elif "collective" in node.meta:
            if isinstance(node.meta["collective"], Transition):
                self._transition(node)
        elif "fact" in node.meta:
            self._operator(node, node.meta["fact"])
        elif "made" in node.meta:
            self._set(node, self._value(node.args[0]))

    def _is_up_to_date(self, node: torch.fx.Node) -> None:
        """What a node between values has copied from memory is read before that memory is written again."""
        for source in node.all_input_nodes:
            place, times = self.copied.get(source, (None, 0))
            if place is not None and times != self.writes[place]:
                raise Illegal(f"reads {source.name}, which was copied before its memory was written")
        if "writes" in node.meta:
            self.writes[self.memory[node]] += 1
        elif "collective" in node.meta:
            for source in node.all_input_nodes:
                if source in self.copied:
                    self.copied[node] = self.copied[source]
                elif source in self.memory and node.meta["collective"].does not in VIEWS:
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
        source, record, others = _work(node)
        step = Step(self.mesh, record, self._value(source), [self._value(other) for other in others])
        if step.value.shut and record.does != "opened":
            raise Illegal(f"reads {step.value.name}, which is as whoever gets the unit's results has it")
        value = FORWARD[record.does](step)
        if "marks" in node.meta:
            value = replace(value, name=node.meta["marks"], outputs=node.meta["fact"].outputs)
        self.steps[node] = step
        self._set(node, replace(self.mesh.settled(value), wants=step.value.wants and self.recording))

    def _operator(self, node: torch.fx.Node, fact: Fact) -> None:
        name = str(node.meta["origin"])
        if node.op in ("placeholder", "get_attr"):
            value = self._given(node, fact)
        else:
            sources = _operands(node, fact)
            operands = [self._given(own, own.meta["fact"]) if at is None else self._value(at) for own, at in sources]
            for (own, at), operand in zip(sources, operands, strict=True):
                if at is not None and operand.name not in _names(own):
                    raise Illegal(f"reads {operand.name}, where it is to read {own.meta['origin']}")
            op = Operator(self.mesh, node, fact, operands, self.known)
            self.operators[node] = op, [at for _, at in sources]
            value = op.forward()
            wants = self.recording and gives_gradient(node) and any(operand.wants for operand in operands)
            value = replace(value, wants=wants or self._is_given(node))
        self.known[name] = value
        self._set(node, value)
        if value.wants and "writes" in node.meta:
            for shared in node.meta["writes"]:
                if shared in self.found.values:
                    self._set(shared, replace(self.found.values[shared], wants=True))

    def _given(self, node: torch.fx.Node, fact: Fact) -> Value:
        """What a rank has of an input or a parameter: its part of those that are cut, the positions of what comes so."""
        axes = self.mesh.axes_in(fact.outputs)
        value = Value(str(node.meta["origin"]), fact.outputs, wants=self._is_given(node))
        if is_parameter(node):
            value = replace(value, axes=axes & self.contract.cuts.keys())
        elif node.target == self.contract.source:
            value = replace(value, axes=axes & {self.contract.positions}, shut=True)
        return self.mesh.settled(value)

    def _is_given(self, node: torch.fx.Node) -> bool:
        return self.contract.backward and bool(node.meta.get("gradient"))

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
        if node.meta.get("gradient") and (varying := gradient.varies - (NONE if is_parameter(node) else value.uneven)):
            raise Illegal(f"has a gradient of which each rank has only its part over {text(varying)}")
        if node in self.steps:
            source, record, _ = _work(node)
            self._arrive(source, node, BACKWARD[record.does](self.steps[node], gradient))
        elif node in self.operators:
            op, read = self.operators[node]
            for place, operand in enumerate(read):
                self._through(node, op, place, operand, gradient)
        elif "made" in node.meta:
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
                    f"has a gradient that varies over {text(differing)} by way of {_named(reader)} or of "
                    f"{_named(arriving[0][0])}, and does not by way of the other"
                )
        return arriving[0][1] if arriving else None


def _shared(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """For what is in memory that is written, one node that stands for all in that memory."""
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        together = {node, *node.meta["writes"]} if "writes" in node.meta else set()
        for other in {found.get(each, each) for each in together}:
            found |= {each: node for each, own in found.items() if own is other}
        found |= dict.fromkeys(together, node)
    return found


def _work(node: torch.fx.Node) -> tuple[torch.fx.Node, Transition, list[torch.fx.Node]]:
    """The value that a node is about, what it does, and what else it reads: of one call for several, what that call says."""
    record, args = node.meta["collective"], cast(Any, node.args)
    if record.number is None:
        source, *others, _ = args
        return source, record, others
    value, call = args
    joined = call.meta.get("collective")
    if not isinstance(joined, Joined) or record.number >= len(joined.parts):
        raise Illegal(f"hands on a result of {call}, which is no call for several")
    source, own = call.args[0][record.number], joined.parts[record.number]
    alike = {(part.does, part.over, part.of, bool(part.summed)) for part in joined.parts}
    if source is not value or own != record.alone or len(alike) > 1:
        raise Illegal(f"hands on a result of {call} that is not what it says")
    return source, own, []


def _factors(record: Transition | Joined) -> Iterator[Factors]:
    for part in record.parts if isinstance(record, Joined) else (record,):
        yield part.over
        yield part.summed
        yield from (over for _, _, over in part.dims)


def _operands(node: torch.fx.Node, fact: Fact) -> list[tuple[torch.fx.Node, torch.fx.Node | None]]:
    """Each operand as inference knew it, with the node that is read in its place: none for what a layer reads of its own."""
    if node.target is operator.getitem:
        return [(fact.operands[0], cast(torch.fx.Node, node.args[0]))]
    given = [value for value in pytree.tree_leaves(tuple(named_arguments(node).values())) if is_tensor(value)]
    own = [_is_of_layer(node, operand) for operand in fact.operands]
    if fact.operands and len(given) != own.count(False):
        raise Illegal(f"reads {len(given)} values, where it is to read {own.count(False)}")
    rest = iter(given)
    return [(operand, None if inside else next(rest)) for operand, inside in zip(fact.operands, own, strict=True)]


def _is_of_layer(node: torch.fx.Node, operand: torch.fx.Node) -> bool:
    return (
        node.op == "call_module"
        and operand.op == "get_attr"
        and str(operand.target).rpartition(".")[0] == str(node.target)
    )


def _names(node: torch.fx.Node) -> set[str]:
    """What a value may be called: a marker where a value is gathered, which may be whole, is that value too."""
    fact = node.meta["fact"]
    more = _names(fact.operands[0]) if fact.collects else set[str]()
    return {str(node.meta["origin"])} | more


def _leaves(value: Value) -> None:
    """What leaves a unit is whole, or as whoever gets it takes it."""
    if value.shut:
        return
    how = (
        "a slice" if value.axes else "a partial sum" if value.partial else "with rows of no use" if value.routed else ""
    )
    if how:
        raise Illegal(f"hands on {value.name}, which is {how}")


def _named(node: torch.fx.Node) -> str:
    """A node of the program and its operator, for an error."""
    if node.op == "output":
        return "the output"
    operator_of = node.target if isinstance(node.target, torch._ops.OpOverload | str) else node.target.__name__
    return f"{node.name} ({operator_of})"
