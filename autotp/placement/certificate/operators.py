"""What an operator may be given, what it gives, and what comes back through it: all from the fact that inference found of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ...axes.annotation import annotation
from ...axes.facts import Fact
from ...axes.layout import is_even, layout_of
from ...axes.term import Axis, axes_of, axes_of_dims
from ..placed import placed_as
from ..routed import Routed, picked, row_by_row
from .values import Gradient, Illegal, Mesh, Value, text


class Operator:
    """One operator of a program, and the values that it reads, in the order of its fact's operands."""

    def __init__(
        self, mesh: Mesh, node: torch.fx.Node, fact: Fact, operands: Sequence[Value], known: Mapping[str, Value]
    ) -> None:
        """`known` has the values so far by the names of the placed ones."""
        self.mesh, self.node, self.fact, self.operands, self.known = mesh, node, fact, operands, known
        self.own = [mesh.axes_in(operand.outputs) for operand in operands]
        self.held: frozenset[Axis] = frozenset().union(*(operand.axes for operand in operands))
        self.created = frozenset(axes_of_dims(fact.creates)) & mesh.cuts.keys() if mesh.cuts else frozenset()
        self.contracted = frozenset(axis for term in fact.contracts for axis in axes_of(term)) & self.held
        self.result = mesh.axes_in(fact.outputs)

    def forward(self) -> Value:
        """The result. Raises Illegal if the operator must not be given these values."""
        for row in ROWS:
            row(self)
        routed = self.routed()
        axes = (self.held | self.created) & self.result
        partial = self.mesh.factors(self.contracted).union(*(operand.partial for operand in self.operands))
        name = placed_as(self.node).origin
        return self.mesh.settled(Value(name, self.fact.outputs, axes, partial, routed))

    def backward(self, result: Value, gradient: Gradient, place: int) -> Gradient:
        """What the gradient of the result makes of the gradient of one operand."""
        operand = self.operands[place]
        if gradient.done:
            raise Illegal("reads a parameter whose gradient is summed in part")
        if lost := (operand.slices | operand.partial | operand.rows) - result.varies:
            raise Illegal(f"has a result that is whole over {text(lost)}, though {operand.name} is not")
        if same := (operand.uneven - result.varies) - gradient.varies:
            raise Illegal(f"is read with a gradient over {text(same)} of which every rank has all, beside slices")
        return Gradient(
            (gradient.varies | result.varies | operand.uneven) - operand.slices - operand.partial - operand.rows
        )

    def routed(self) -> Routed | None:
        """How the rows of the result are routed: by what it picks itself, or because operands are."""
        own = picked(self.node, self.fact, self.held)
        ways = {operand.routed.routing for operand in self.operands if operand.routed is not None}
        if own is None and not ways:
            return None
        routing = own.routing if own is not None else next(iter(ways))
        if ways - {routing}:
            raise Illegal("reads rows that are of no use on some ranks, and its result is not routed alike")
        if annotation(self.node).writes is not None:
            raise Illegal("writes into rows of which only some are right")
        useless = {self.operands[place].name for place in self.fact.nonzero if self.operands[place].routed is not None}
        if useless:
            raise Illegal(f"reads rows of {', '.join(useless)} that are of no use where some numbers make none")
        if own is not None:
            by = placed_as(routing.by).origin or routing.by.name
            if by not in self.known or self.known[by].varies:
                raise Illegal("picks by a value that is not the same on all ranks")
            return own
        dim = row_by_row(self.node, self.fact, routing)
        if dim is None:
            raise Illegal("reads rows that are of no use on some ranks, and does not compute every row by itself")
        return Routed(routing, dim)


def _are_open(op: Operator) -> None:
    """What only whoever gets the unit's results may read is read by no operator."""
    if closed := [operand.name for operand in op.operands if operand.shut]:
        raise Illegal(f"reads {closed[0]}, which is as whoever gets the unit's results has it")


def _agree(op: Operator) -> None:
    """Operands that have an axis are all slices along it, or none is."""
    for axis in op.held | op.created:
        for operand, own in zip(op.operands, op.own, strict=True):
            if axis in own and axis not in operand.axes:
                raise Illegal(f"reads all of {operand.name} along an axis of {axis.size}, beside slices")


def _are_whole_where_needed(op: Operator) -> None:
    """An axis that the operator needs whole is whole."""
    name = placed_as(op.node).origin
    for axis in op.held:
        if any(pin.node == name for pin in axis.pins):
            raise Illegal(f"needs an axis of {axis.size} whole")


def _are_linear(op: Operator) -> None:
    """A partial sum is read by an operator that is linear in all its operands together that are partial sums over a factor. No
    operand is cut over that factor: ranks would multiply parts of different sums."""
    for factor in {factor for operand in op.operands for factor in operand.partial}:
        group = frozenset(i for i, operand in enumerate(op.operands) if factor in operand.partial)
        if group not in op.fact.linear:
            names = ", ".join(dict.fromkeys(op.operands[i].name for i in sorted(group)))
            raise Illegal(f"reads {names} as a partial sum over {factor}, in which it is not linear")
        if factor in op.mesh.factors(op.held) or any(factor in operand.rows for operand in op.operands):
            raise Illegal(f"multiplies a partial sum over {factor} with a slice over the same ranks")


def _sums(op: Operator) -> None:
    """What is summed over is a slice in all of its segments, and nothing is added in the same step."""
    if not op.contracted or op.fact.looks_up:
        return
    if not op.fact.linear:
        raise Illegal("sums over a cut axis and adds something else in one step")
    cut = {axis: op.mesh.cuts[axis] for axis in op.contracted & op.mesh.cuts.keys()}
    if cut.keys() != op.contracted or not all(is_even(layout_of(term, cut)) for term in op.fact.contracts):
        raise Illegal("sums over segments of which some are cut and some are whole")


def _loses_nothing(op: Operator) -> None:
    """The result of several operands has all axes that these are cut along, but for those that are summed or picked."""
    picked = frozenset(axes_of(op.fact.pick.choice)) if op.fact.pick is not None else frozenset[Axis]()
    if len(op.operands) > 1 and op.fact.outputs and (lost := op.held - op.result - op.contracted - picked):
        raise Illegal(f"has no axis of {next(iter(lost)).size} in its result, along which it reads slices")


ROWS: tuple[Callable[[Operator], None], ...] = (
    _are_open,
    _agree,
    _are_whole_where_needed,
    _are_linear,
    _sums,
    _loses_nothing,
)
