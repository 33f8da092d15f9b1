"""What a survey says of the calls of units, beside the plan: data that can be kept, so that a later start surveys nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..axes.annotation import annotation
from ..capture.traced import Traced
from ..capture.varying import Seen
from ..planner.plan import Plan
from ..planner.survey import Survey
from .compiler import tensors_in


@dataclass(frozen=True)
class UnitCalls:
    """The calls of the units of one unit plan, whose first instance is `unit`: what they were given, which tensors of a result
    (by their number) nobody reads, and which inputs (by their place in the call) want a gradient."""

    unit: str
    seen: tuple[Seen, ...] = ()
    unread: tuple[int, ...] = ()
    wanting: tuple[str, ...] = ()


def traces_of(plan: Plan, found: Survey) -> Mapping[str, Traced]:
    """The traces of the units of a plan, by the first instance of each unit plan."""
    return {path: found.traced[shape] for path, shape in _traced(plan, found)}


def calls_of(plan: Plan, found: Survey) -> tuple[UnitCalls, ...]:
    """What a survey says of the calls of all units of a plan that it has traced."""
    return tuple(
        UnitCalls(
            path,
            found.varying[shape].seen(),
            tuple(sorted(found.traced[shape].unread)),
            tuple(sorted(_wanting(found.traced[shape]))),
        )
        for path, shape in _traced(plan, found)
    )


def _traced(plan: Plan, found: Survey) -> Iterator[tuple[str, int]]:
    """The first instance of each unit plan whose units were traced, with their shape."""
    shapes = {unit.path: unit.shape for unit in found.units}
    for unit in plan.units:
        path = unit.instances[0]
        if shapes.get(path) in found.traced:
            yield path, shapes[path]


def _wanting(traced: Traced) -> frozenset[str]:
    """The places in the call of the tensors that wanted a gradient."""
    return frozenset(own for node, own in tensors_in(traced.graph, traced.site) if annotation(node).gradient)
