"""The one gate for plans that somebody gives: what is not about the model, or not sound for it, is refused before it is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..errors import AutotpError, PlanError, UnsoundPlanError, in_one_line
from ..planner.assemble import collective_plan
from ..planner.cost import Workload, hardware
from ..planner.plan import Plan
from ..planner.survey import Survey
from ..planner.work import placed_as_planned

MSG_NOT_TRACED = (
    "the plan cuts the unit {unit}, which this model is not traced in; make a new plan with autotp.plan(...)"
)
MSG_NOT_PLACED = "no placement is known for {unit} under the plan's layouts ({error}); make a new plan"


def accept(plan: Plan, found: Survey, rules: tuple[Path, ...] = ()) -> Plan:
    """Prove that a plan of a surveyed model's parameters is sound: every unit that it cuts is placed, forward and backward.
    Returns it with the collectives that its layouts need.

    Raises PlanError if the plan has other units than the model, UnsoundPlanError or PlacementError if it is unsound.
    """
    machine, workload = hardware(plan.hardware, rules), Workload(plan.tokens, plan.element_bytes)
    shapes = {unit.path: unit.shape for unit in found.units}
    units = []
    for unit in plan.units:
        if not unit.layouts():
            units.append(replace(unit, collectives=()))
            continue
        name, traced = unit.instances[0] or "the model", found.traced.get(shapes.get(unit.instances[0], -1))
        if traced is None:
            raise PlanError(MSG_NOT_TRACED.format(unit=name))
        try:
            placement, weigher = placed_as_planned(unit, traced, machine, workload, rules, plan.tp)
            units.append(replace(unit, collectives=tuple(map(collective_plan, weigher.collectives(placement)))))
        except AutotpError as error:
            raise type(error)(f"{name}: {error}") from error
        except Exception as error:
            raise UnsoundPlanError(MSG_NOT_PLACED.format(unit=name, error=in_one_line(error))) from error
    return replace(plan, units=tuple(units))
