"""Whether blocks hand on values that are cut over positions: where a training step would not fit a rank without.

To cut them sends the same sums, scattered and gathered in place of reduced, and gathers some again in the backward. So it takes
longer, and a rank keeps fewer activations.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .advise import ROOM
from .cost import Hardware, Workload
from .estimate import GIB, Estimate, estimate
from .plan import Plan
from .survey import Survey
from .works import works_of


def whole_or_cut(
    whole: Plan, cut: Plan, found: Survey, machine: Hardware, workload: Workload, rules: tuple[Path, ...]
) -> Plan:
    """Of two plans, which differ in whether positions are cut: the faster one whose training step fits a rank, with a sentence
    on that; if neither does, the one of less memory."""

    def estimated(plan: Plan) -> Estimate:
        works, unknown = works_of(plan, found, machine, workload, rules)
        return estimate(plan, works, machine, 1, workload.tokens, unknown)

    if not any(unit.sequence for unit in cut.units):
        return replace(whole, positions="positions stay whole: no unit hands on what can be cut over them")
    room = ROOM * machine.memory_gib * GIB
    made = {plan: estimated(plan) for plan in (whole, cut)}
    fitting = [plan for plan in made if made[plan].memory.training <= room]
    best = (
        min(fitting, key=lambda plan: made[plan].step.total)
        if fitting
        else min(made, key=lambda plan: made[plan].memory.training)
    )
    needs, other = made.pop(best), next(iter(made.values()))
    return replace(best, positions=_sentence(best is cut, needs, other, room))


def _sentence(is_cut: bool, needs: Estimate, other: Estimate, room: float) -> str:
    words = ("cut", "whole") if is_cut else ("whole", "cut")
    most = f"of {room / GIB:.4g} GiB, {needs.step.total * 1e3:.4g} ms"
    return (
        f"positions are {words[0]}: a training step of {needs.tokens:,} tokens takes {needs.memory.training / GIB:.4g} {most};"
        f" with {words[1]} ones {other.memory.training / GIB:.4g} GiB, {other.step.total * 1e3:.4g} ms"
    )
