"""Sequence placement: which values of a placed unit a rank computes at its own positions only.

Blocks hand on a value cut over its positions, one axis of the graph. Every operator that treats positions alike, and whose
result would be the same on all ranks, is computed on this rank's positions: norms, dropout, residual sums. What goes on to
a chain is gathered before it, and backward the chain's gradients are reduced and scattered; a chain's sum is reduced and
scattered, and backward gathered. Parameters read on positions have partial gradients, which are summed.

An operator computes on positions if
- it reads a value that is cut over them, and gives one tensor with the axis as one whole dim;
- its result is the same on all ranks, and so is its gradient (see `conjugate`);
- it does not need the axis whole, is given no sizes, and writes into nothing;
- it is no product with a matrix of parameters: summing the matrix's gradient would cost more than it saves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from ..axes.annotation import annotation
from ..axes.call import may_be_view
from ..axes.facts import Fact
from ..axes.layout import Factor, Factors
from ..axes.term import Axis, Dims, axes_of, axes_of_dims, resolve
from .backward import Backward, Enter, Version
from .state import Flow
from .typed import TypedGraph, is_of_parameters, is_parameter

# Arguments that say which dims are meant, or how long those are that a norm needs whole.
_OF_DIMS = frozenset({"dim", "dim0", "dim1", "normalized_shape"})


@dataclass(frozen=True)
class SequenceCut:
    """What of a unit is cut over the positions of `source`, an input, along `axis`; `result` leaves the unit so.

    Attributes:
        over: all ranks, as one mesh factor.
        held: values of which a rank has its positions only.
        scattered: partial sums of whose sum it has its positions only.
        gathers: cut values that are made whole for those that need them so, and over which mesh factors their gradients
            are summed.
        again: those of them that the backward gathers again, in place of keeping them.
        slices: whole values that are cut for those that compute on positions.
        sums: values without positions that are read on positions, so that their gradients are partial sums; and what they
            are: "parameter" where they are made of parameters alone.
    """

    over: Factors
    axis: Axis
    source: torch.fx.Node
    result: torch.fx.Node
    held: frozenset[torch.fx.Node] = frozenset()
    scattered: frozenset[torch.fx.Node] = frozenset()
    gathers: dict[Version, frozenset[Factor]] = field(default_factory=dict)
    again: frozenset[Version] = frozenset()
    slices: frozenset[Version] = frozenset()
    sums: dict[torch.fx.Node, str] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Which tensor of the call is cut."""
        return int(str(self.source.target).removeprefix("tensor_"))

    def is_cut(self, version: Version) -> bool:
        """Returns if a rank has only its positions of a value."""
        node, reduced = version
        return node in (self.scattered if reduced else self.held)

    def wants_cut(self, consumer: torch.fx.Node, operand: torch.fx.Node) -> bool:
        """Returns if a consumer reads a rank's positions of an operand."""
        return consumer in self.held or (consumer.op == "output" and operand is self.result)

    def dim(self, dims: Dims) -> int | None:
        """The dim of a value that is the axis; None if there is none, or not that alone."""
        return _dim_of(self.axis, dims)


def place_sequence(typed: TypedGraph, flow: Flow, backward: Backward, ranks: int) -> SequenceCut | str:
    """Cut a placed unit over the positions of what it hands on, or say why that cannot be; nothing is said of one that nothing
    is handed to."""
    found = _handed_on(typed, flow)
    if isinstance(found, str):
        return found
    axis, source, result = found
    cut = _Placer(typed, flow, backward, SequenceCut((Factor(ranks, 1),), axis, source, result)).run()
    return cut if cut.held - {source} else "nothing between its chains treats all positions alike"


def _dim_of(axis: Axis, dims: Dims) -> int | None:
    places = [i for i, term in enumerate(dims) if resolve(term) is axis]
    others = [term for i, term in enumerate(dims) if i not in places]
    return places[0] if len(places) == 1 and axis not in axes_of_dims(others) else None


def _handed_on(typed: TypedGraph, flow: Flow) -> tuple[Axis, torch.fx.Node, torch.fx.Node] | str:
    """The axis of positions, the input and the result that have it in the dim before the last and are of equal sizes."""
    (output,) = typed.graph.find_nodes(op="output")
    results = [n for n in output.all_input_nodes if _is_vectors(typed, n) and not flow.held[n]]
    inputs = [node for node in typed.graph.find_nodes(op="placeholder") if node.users and _is_vectors(typed, node)]
    why = "no result has the positions of an input" if inputs else ""
    for source in inputs:
        dims = typed.facts[source].dims
        axis = resolve(dims[-2])
        for result in results:
            own = typed.facts[result].dims
            sizes = [[term.size for term in each] for each in (dims, own)]
            if sizes[0] != sizes[1] or list(axes_of(own[-2])) != list(axes_of(axis)):
                continue
            if not isinstance(axis, Axis) or {_dim_of(axis, dims), _dim_of(axis, own)} != {len(dims) - 2}:
                why = "its positions are taken apart"
            elif source in flow.written:
                why = "it writes into its input"
            else:
                return axis, source, result
    return why


def _is_vectors(typed: TypedGraph, node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return node in typed.facts and isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1


class _Placer:
    def __init__(self, typed: TypedGraph, flow: Flow, backward: Backward, cut: SequenceCut) -> None:
        self.typed, self.flow, self.cut = typed, flow, cut
        self.enters: dict[tuple[torch.fx.Node, torch.fx.Node], Enter] = {
            (consumer, enter.node): enter for enter in backward.enters for consumer in enter.consumers
        }
        self.summed = {scatter.node: scatter.over for scatter in backward.scatters}
        self.pinned = {pin.node for pin in cut.axis.pins}
        self.varying: dict[torch.fx.Node, frozenset[Factor]] = {}

    def run(self) -> SequenceCut:
        held = {self.cut.source}
        reduces = self.flow.reduces()
        scattered = {node for node, over in reduces.items() if self._may_scatter(node, over)}
        for node in [node for node in self.typed.graph.nodes if node in self.typed.facts]:
            self.varying[node] = self._varies(node)
            if self._on_positions(node, held, scattered):
                held.add(node)
        read = {
            operand
            for consumer, operand in self._edges()
            if self._version(consumer, operand) == (operand, True)
            and (consumer in held or (consumer.op == "output" and operand is self.cut.result))
        }
        return self._with_readings(frozenset(held), frozenset(scattered & read))

    def _may_scatter(self, node: torch.fx.Node, over: frozenset[Factor]) -> bool:
        """Returns if the sum of a value is one over all ranks, and has the positions as one dim."""
        everywhere = math.prod(factor.size for factor in over) == self.cut.over[0].size
        kept_apart = self.flow.held[node] or node in self.flow.routed
        return everywhere and not kept_apart and self._has_positions(node)

    def _has_positions(self, node: torch.fx.Node) -> bool:
        outputs = self.typed.facts[node].outputs
        single = isinstance(node.meta.get("val"), torch.Tensor) and len(outputs) == 1
        return single and self.cut.dim(outputs[0]) is not None

    def _varies(self, node: torch.fx.Node) -> frozenset[Factor]:
        """The mesh factors over which a value or its gradient differs between ranks."""
        fact, found = self.typed.facts[node], set(self.flow.varies(node))
        for operand in fact.operands:
            enter = self.enters.get((node, operand))
            own = self.varying[operand] - self.flow.use(node, operand).reduce
            found |= own | (enter.over if enter else frozenset())
        if fact.collects and self.flow.collected(node, fact.operands[0]):
            return self.summed.get(node, frozenset())
        return frozenset(found)

    def _on_positions(self, node: torch.fx.Node, held: set[torch.fx.Node], scattered: set[torch.fx.Node]) -> bool:
        fact = self.typed.facts[node]
        if node.op != "call_function" or not self._has_positions(node) or self.varying[node]:
            return False
        if node.name in self.pinned or not _is_local(node, fact, self.cut.axis) or self._multiplies_matrix(fact):
            return False
        cut = False
        for operand in fact.operands:
            version, dims = self._version(node, operand), self.typed.facts[operand].outputs
            if operand in self.flow.written or len(dims) != 1:
                return False
            if self.cut.axis in axes_of_dims(dims[0]) and self.cut.dim(dims[0]) is None:
                return False
            cut |= operand in (scattered if version[1] else held)
        return cut

    def _multiplies_matrix(self, fact: Fact) -> bool:
        matrices = [
            o for o in fact.operands if is_parameter(o) and sum(t.size > 1 for t in self.typed.facts[o].dims) > 1
        ]
        return bool(fact.contracts) and bool(matrices)

    def _version(self, consumer: torch.fx.Node, operand: torch.fx.Node) -> Version:
        return operand, bool(self.flow.use(consumer, operand).reduce)

    def _edges(self) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
        for consumer in self.typed.graph.nodes:
            for operand in consumer.all_input_nodes:
                if operand in self.typed.facts and (consumer in self.typed.facts or consumer.op == "output"):
                    yield consumer, operand

    def _with_readings(self, held: frozenset[torch.fx.Node], scattered: frozenset[torch.fx.Node]) -> SequenceCut:
        cut = replace(self.cut, held=held, scattered=scattered)
        gathers, slices, sums = dict[Version, frozenset[Factor]](), set[Version](), dict[torch.fx.Node, str]()
        for consumer, operand in self._edges():
            version, wants = self._version(consumer, operand), cut.wants_cut(consumer, operand)
            if cut.is_cut(version) and not wants:
                enter = self.enters.get((consumer, operand))
                gathers[version] = gathers.get(version, frozenset()) | (enter.over if enter else frozenset())
            elif wants and not cut.is_cut(version):
                if cut.dim(self.typed.facts[operand].dims) is not None:
                    slices.add(version)
                elif operand in self.flow.gradient:
                    sums[operand] = "parameter" if is_of_parameters(self.typed, operand) else "activation"
        again = frozenset(version for version in gathers if self._is_kept(*version, cut))
        return replace(cut, gathers=gathers, again=again, slices=frozenset(slices), sums=sums)

    def _is_kept(self, node: torch.fx.Node, reduced: bool, cut: SequenceCut) -> bool:
        """Returns if a whole value, or a view of it, is a factor of a product with a matrix that wants a gradient."""
        for user in [user for user in node.users if user in self.typed.facts and user not in cut.held]:
            fact = self.typed.facts[user]
            if bool(self.flow.use(user, node).reduce) is not reduced:
                continue
            others = [operand for operand in fact.operands if operand is not node]
            if self._multiplies_matrix(fact) and any(operand in self.flow.gradient for operand in others):
                return True
            if may_be_view(user) and self._is_kept(user, False, cut):
                return True
        return False


def _is_local(node: torch.fx.Node, fact: Fact, axis: Axis) -> bool:
    """Returns if an operator gives, on some positions, just what it gives there on all of them."""
    schema = getattr(node.target, "_schema", None)
    if (
        schema is None
        or schema.is_mutable
        or annotation(node).writes is not None
        or annotation(node).opaque is not None
    ):
        return False
    if axis in axes_of_dims(fact.contracts) or axis in axes_of_dims(fact.creates):
        return False
    # What is given sizes or places, or takes out dims of size one, would see those of a slice.
    numbers = (argument for argument in schema.arguments if "int" in str(argument.real_type))
    return all(number.name in _OF_DIMS for number in numbers) and fact.local != "squeeze"
