"""The same model at several sizes, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ..planner.estimate import Estimate
from ..planner.plan import Plan
from ..planner.spare import padded, shared
from .estimate import memory_rows
from .summary import of_phase, share
from .text import add_row, byte_size, duration, fold, make_table, number

SHOWN = 4


def plan_sizes(pairs: Sequence[tuple[Plan, Estimate]]) -> Table:
    """One column for each size: parameters, memory, collectives, bytes, time, and what does not divide."""
    title = f"{pairs[0][0].model} on {pairs[0][1].hardware}, {number(pairs[0][1].tokens)} tokens"
    table = make_table((title, *(f">tp {plan.tp}" for plan, _ in pairs)))
    plans, found = [plan for plan, _ in pairs], [estimate for _, estimate in pairs]
    add_row(table, ("parameters of a rank", *(number(plan.elements()[1]) for plan in plans)))
    add_row(table, ("", *(share(plan.elements()[1], plan.elements()[0]) for plan in plans)))
    table.add_section()
    for rows in zip(*(memory_rows(e.memory) for e in found), strict=True):
        sizes = (row[1] if row[1] is not None else row[2] or 0.0 for row in rows)
        add_row(table, (rows[0][0], *map(byte_size, sizes)))
    add_row(table, ("memory, training", *(byte_size(e.memory.training) for e in found)), style="bold")
    add_row(table, ("memory, serving", *(byte_size(e.memory.serving) for e in found)), style="bold")
    table.add_section()
    for phase in ("forward", "backward"):
        counts = (len(of_phase(plan.step(), phase)) for plan in plans)
        add_row(table, (f"collectives of one {phase}", *counts))
        sent = (sum(len(t.instances) * getattr(t, phase) for t in e.traffic) for e in found)
        add_row(table, (f"bytes sent a token, {phase}", *map(byte_size, sent)))
    table.add_section()
    add_row(table, ("compute of one step", *(duration(e.step.compute) for e in found)))
    add_row(table, ("communication of one step", *(duration(e.step.communication) for e in found)))
    add_row(table, ("one step", *(f"{duration(e.step.total)} ({e.step.share:.0%})" for e in found)), style="bold")
    add_row(
        table, ("one more token", *(f"{duration(e.token.total)} ({e.token.share:.0%})" for e in found)), style="bold"
    )
    table.add_section()
    add_row(table, ("padded parameters", *(some(padded(plan)) for plan in plans)))
    add_row(table, ("shared by several ranks", *(some(shared(plan)) for plan in plans)))
    return table


def some(names: Sequence[str]) -> str:
    """A few names, folded, and how many more there are."""
    folded = fold(dict.fromkeys(names))
    more = [f"and {len(folded) - SHOWN} more"] if len(folded) > SHOWN else []
    return "\n".join([*folded[:SHOWN], *more]) or "none"
