"""What each node between values may be given, what it gives, and what it makes of the gradient: two rows for each kind.

A row of `FORWARD` takes the value that a node reads, and gives its result; a row of `BACKWARD` takes the gradient of the result,
and gives the value's. Both raise `Illegal` where the record does what is wrong for that value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...axes.layout import Factor, Layout, Leaf, layout_of, local_factors
from ...axes.term import Axis, Dims, Term, axes_of, resolve
from ..placed import placed_as
from ..transition import CutDim, Transition, slice_layout
from .values import Gradient, Illegal, Mesh, Value, text


@dataclass(frozen=True)
class Step:
    """One node at work: what it does, the value it reads, what else it reads."""

    mesh: Mesh
    record: Transition
    value: Value
    others: Sequence[Value] = ()

    @property
    def over(self) -> frozenset[Factor]:
        return self.mesh.atoms(self.record.over)

    @property
    def summed(self) -> frozenset[Factor]:
        return self.mesh.atoms(self.record.summed)

    @property
    def dims(self) -> Dims:
        if len(self.value.outputs) != 1:
            raise Illegal("is given a list")
        return self.value.outputs[0]

    def axes_of(self, cut: CutDim) -> frozenset[Axis]:
        """The axes along which a dim of the value is cut, which must be all that a record says of it."""
        dim, layout, over = cut
        dims = self.dims
        axes = (
            frozenset(axes_of(dims[dim])) & self.value.axes & self.mesh.cuts.keys() if dim < len(dims) else frozenset()
        )
        own = {axis: self.mesh.cuts[axis] for axis in axes}
        if not axes or layout != layout_of(dims[dim], own) or self.mesh.atoms(over) != self.mesh.factors(axes):
            raise Illegal(f"takes dim {dim} for one that is cut as {layout} over {text(over)}")
        return axes

    def positions(self) -> Axis:
        """The axis of positions, which must be the dim that a record says."""
        axis, ((dim, _, _),) = self.mesh.contract.positions, self.record.dims
        if axis is None or dim >= len(self.dims) or resolve(self.dims[dim]) is not axis:
            raise Illegal(f"takes dim {dim} for the positions")
        self.check_everywhere()
        return axis

    def check_everywhere(self) -> None:
        """All ranks have other positions."""
        if not self.over or self.over != self.mesh.atoms(self.mesh.contract.everywhere):
            raise Illegal(f"parts positions over {text(self.over)}, and not over all ranks")


def _reduce(step: Step) -> Value:
    if missing := step.over - step.value.partial:
        raise Illegal(f"sums over {text(missing)} what is no partial sum there")
    return replace(step.value, partial=step.value.partial - step.over)


def _once(step: Step) -> Value:
    if differing := step.over & step.value.varies:
        raise Illegal(f"counts once what differs over {text(differing)}")
    return replace(step.value, partial=step.value.partial | step.over)


def _same(step: Step) -> Value:
    return step.value


def _slice(step: Step) -> Value:
    value, cuts = step.value, step.mesh.cuts
    layouts = tuple(layout for _, layout, _ in step.record.dims)
    pairs = zip(step.dims, layouts, strict=False)
    taken = frozenset(axis for term, layout in pairs for axis in _taken(term, layout)) & cuts.keys() - value.axes
    wanted = tuple(slice_layout(term, value.axes, taken, cuts) for term in step.dims)
    if not taken or wanted != layouts or step.mesh.factors(taken) != step.over:
        raise Illegal("takes a slice that is none along its value's axes")
    return replace(value, axes=value.axes | taken)


def _taken(term: Term, layout: Layout) -> Iterator[Axis]:
    """The axes of a dim that a layout of the same structure cuts."""
    term = resolve(term)
    if isinstance(term, Axis):
        if isinstance(layout, Leaf) and layout.cut is not None:
            yield term
    elif not isinstance(layout, Leaf):
        for part, own in zip(term.parts, layout.parts, strict=False):
            yield from _taken(part, own)


def _own(step: Step) -> Value:
    value, ((dim, parts, _),) = step.value, step.record.dims
    if value.routed is None:
        raise Illegal("keeps a rank's own rows of what is not routed")
    routing, cut = value.routed.routing, step.mesh.cuts[value.routed.routing.choice]
    picked_by = [other.name for other in step.others] == [(placed_as(routing.by).origin or routing.by.name)]
    wanted = value.routed.dim, Leaf(routing.choice.size, cut), routing.ends, step.mesh.atoms(cut.over)
    if (dim, parts, step.record.ends, step.over) != wanted or not picked_by:
        raise Illegal("keeps other rows than those that are right on a rank")
    return replace(value, routed=None, partial=value.partial | step.mesh.atoms(cut.over))


def _gather(step: Step) -> Value:
    joined = frozenset[Axis]().union(*(step.axes_of(cut) for cut in step.record.dims))
    if step.mesh.factors(joined) != step.over:
        raise Illegal(f"gathers over {text(step.over)} what is cut over {text(step.mesh.factors(joined))}")
    return replace(step.value, axes=step.value.axes - joined)


def _handed_on(step: Step) -> Value:
    return replace(_gather(step), shut=True)


def _logits(step: Step) -> Value:
    ((dim, layout, _),) = step.record.dims
    if dim != len(step.dims) - 1 or not isinstance(layout, Leaf):
        raise Illegal(f"takes dim {dim} for that of logits")
    return _handed_on(step)


def _opened(step: Step) -> Value:
    axis = step.mesh.contract.positions
    if not step.value.shut or axis is None or axis not in step.value.axes:
        raise Illegal("opens what is not cut over positions")
    step.check_everywhere()
    return replace(step.value, shut=False)


def _shut(step: Step) -> Value:
    axis = step.mesh.contract.positions
    if axis is None or axis not in step.value.axes or len(step.dims) < 2 or resolve(step.dims[-2]) is not axis:
        raise Illegal("hands on as positions what is none")
    step.check_everywhere()
    return replace(step.value, shut=True)


def _take_positions(step: Step) -> Value:
    axis = step.positions()
    if axis in step.value.axes or step.value.varies:
        raise Illegal("takes positions of what is not the same on all ranks")
    return replace(step.value, axes=step.value.axes | {axis})


def _gather_positions(step: Step) -> Value:
    axis = step.positions()
    if axis not in step.value.axes:
        raise Illegal("gathers positions of what is whole")
    return replace(step.value, axes=step.value.axes - {axis})


def _scatter_sum(step: Step) -> Value:
    axis, over = step.positions(), step.over
    if axis in step.value.axes or over - step.value.partial:
        raise Illegal(f"sums over {text(over)} what is no partial sum there")
    return replace(step.value, axes=step.value.axes | {axis}, partial=step.value.partial - over)


FORWARD: Mapping[str, Callable[[Step], Value]] = {
    "reduce": _reduce,  # partial -> whole
    "once": _once,  # whole -> partial
    "enter": _same,
    "enter_part": _same,
    "leave": _same,
    "slice": _slice,  # whole -> slice
    "own": _own,  # routed -> partial
    "gather": _gather,  # slice -> whole
    "logits": _logits,  # slice -> whole, for those who get the unit's results
    "defer": _handed_on,  # the same
    "keep": _handed_on,  # the same: they get a distributed tensor
    "opened": _opened,
    "shut": _shut,
    "take_positions": _take_positions,  # whole -> slice
    "gather_positions": _gather_positions,  # slice -> whole
    "scatter_sum": _scatter_sum,  # partial -> slice
}


def _whole_there(step: Step, gradient: Gradient) -> Gradient:
    """The gradient is handed on, and every rank must have all of it."""
    if varying := step.over & gradient.varies:
        raise Illegal(f"hands on a gradient of which each rank has only its part over {text(varying)}")
    return gradient


def _handed(step: Step, gradient: Gradient) -> Gradient:
    return gradient


def _summed(step: Step, gradient: Gradient) -> Gradient:
    if same := step.over - gradient.varies:
        raise Illegal(f"sums a gradient over {text(same)} of which every rank has all")
    if apart := step.over & step.value.uneven:
        raise Illegal(f"sums a gradient over {text(apart)} of which a rank has its slice in some segments")
    return replace(gradient, varies=gradient.varies - step.over)


def _part_summed(step: Step, gradient: Gradient) -> Gradient:
    ((dim, _, _),), where = step.record.dims, step.record.where
    wanted = {factor: _whole_places(step, dim, factor) for factor in step.over}
    now = frozenset((dim, position, factor) for factor in step.over for position in where)
    if not step.over or step.over - gradient.varies or now & gradient.done:
        raise Illegal(f"sums some positions of a gradient over {text(step.over)} twice, or where it does not vary")
    if any(not wanted[factor].issuperset(where) for factor in step.over):
        raise Illegal("sums positions of a gradient of which a rank has its slice")
    done = gradient.done | now
    over = frozenset(f for f in step.over if all((dim, position, f) in done for position in wanted[f]))
    return Gradient(gradient.varies - over, frozenset(place for place in done if place[2] not in over))


def _whole_places(step: Step, dim: int, factor: Factor) -> frozenset[int]:
    """The positions of a dim at which a rank has what all ranks along a factor have."""
    own = {axis: step.mesh.cuts[axis] for axis in step.value.axes}
    at = enumerate(local_factors(layout_of(step.dims[dim], own)))
    return frozenset(position for position, over in at if factor not in step.mesh.atoms(tuple(over)))


def _left(step: Step, gradient: Gradient) -> Gradient:
    if differing := step.over & step.value.varies:
        raise Illegal(f"counts the gradient of what differs over {text(differing)} once")
    return replace(gradient, varies=_whole_there(step, gradient).varies | step.over)


def _spread(step: Step, gradient: Gradient) -> Gradient:
    """Every rank has the gradient of its slice, with zeros around it."""
    return replace(gradient, varies=gradient.varies | (step.over - step.value.slices))


def _gathered(step: Step, gradient: Gradient) -> Gradient:
    over, summed = step.over, step.summed
    if same := summed - gradient.varies:
        raise Illegal(f"sums a gradient over {text(same)} of which every rank has all")
    if varying := (over - summed) & gradient.varies:
        raise Illegal(f"takes its slice of a gradient of which each rank has only its part over {text(varying)}")
    return replace(gradient, varies=(gradient.varies - over - summed) | (step.value.uneven & over))


BACKWARD: Mapping[str, Callable[[Step, Gradient], Gradient]] = {
    "reduce": _whole_there,
    "once": _handed,
    "enter": _summed,  # varying -> whole
    "enter_part": _part_summed,  # varying -> whole, at some positions
    "leave": _left,  # whole -> varying
    "slice": _spread,  # slice -> varying
    "own": _handed,
    "gather": _gathered,  # whole, or varying and summed -> slice
    "logits": _gathered,
    "defer": _gathered,
    "keep": _gathered,
    "opened": _handed,
    "shut": _handed,
    "take_positions": _handed,  # slice -> whole
    "gather_positions": _gathered,
    "scatter_sum": _handed,  # slice -> whole
}
