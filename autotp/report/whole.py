"""What a plan does not cut, and why: nothing is left whole in silence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.table import Table

from ..planner.plan import Plan, UnitPlan
from .text import add_row, fold, make_table, number, place_of

NAMES = 6


def plan_left_whole(plan: Plan) -> Table:
    """Everything that every rank holds whole, by reason, and every cut that was thought of and not made."""
    table = make_table(("left whole on every rank", ">elements", "why"), title="not cut, and why")
    for reason, (names, elements) in _by_reason(plan).items():
        add_row(table, (_some(fold(names)), number(elements), reason))
    for unit in plan.units:
        for entry in _other_misses(unit):
            add_row(table, (place_of(unit.instances), "", entry))
    if not table.row_count:
        add_row(table, ("nothing", 0, "every parameter is cut"))
    return table


def _by_reason(plan: Plan) -> dict[str, tuple[list[str], int]]:
    """Names and number of elements of the whole parameters of each reason; a tied one counts once."""
    found: dict[str, tuple[list[str], int]] = {}
    again = {name for names in plan.tied for name in names[1:]}
    for name, shape, reason in _whole(plan):
        if name in again:
            continue
        names, elements = found.get(reason, ([], 0))
        found[reason] = ([*names, name], elements + math.prod(shape))
    return found


def _whole(plan: Plan) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for unit in plan.units:
        for p in unit.parameters:
            if p.placement == "replicated":
                yield from ((f"{path}.{p.name}".lstrip("."), p.shape, p.reason) for path in unit.instances)
    yield from ((parameter.name, parameter.shape, parameter.reason) for parameter in plan.outside)


def _other_misses(unit: UnitPlan) -> Iterator[str]:
    """Cuts not made, without those that are the reason of a parameter already listed."""
    reasons = {p.reason for p in unit.parameters if p.placement == "replicated"}
    for entry in unit.not_cut:
        if not any(entry.endswith(f": {reason}") for reason in reasons):
            yield entry


def _some(names: Sequence[str]) -> str:
    more = [f"and {len(names) - NAMES} more"] if len(names) > NAMES else []
    return "\n".join([*names[:NAMES], *more])
