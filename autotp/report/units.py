"""A plan unit by unit: which collectives run, on what, and how large they are."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from ..planner.plan import ParameterPlan, Plan, UnitPlan
from .summary import kind_name
from .text import add_row, byte_size, duration, fold, make_table, place_of


def plan_units(plan: Plan) -> list[Table]:
    """The collectives of every unit that has some; equal units share theirs."""
    return [_collectives(unit) for unit in plan.units if unit.collectives]


def folded(parameters: Iterable[ParameterPlan]) -> list[tuple[str, ParameterPlan]]:
    """Parameters that differ only in a number of their name, once each, under the folded name."""
    alike: dict[tuple[object, ...], list[ParameterPlan]] = {}
    for p in parameters:
        name = tuple(part for part in p.name.split(".") if not part.isdecimal())
        alike.setdefault((name, p.placement, p.shape, p.layouts, p.local_shape, p.rule), []).append(p)
    return [(name, same[0]) for same in alike.values() for name in fold(p.name for p in same)]


def _collectives(unit: UnitPlan) -> Table:
    columns = ("collective", "phase", "of", "node", ">ranks", "elements", ">wire bytes", ">time", ">in a step")
    equal = f", {len(unit.instances)} equal units" if len(unit.instances) > 1 else ""
    table = make_table(columns, title=place_of(unit.instances) + equal)
    for c in unit.collectives:
        price = byte_size(c.wire_bytes), duration(c.seconds)
        add_row(
            table,
            (kind_name(c.kind), c.phase, c.of, ", ".join(c.nodes), c.ranks, c.elements, *price, len(unit.instances)),
        )
    return table
