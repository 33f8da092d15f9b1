"""The work of all units of a plan."""

from __future__ import annotations

from pathlib import Path

from ..errors import AutotpError, UsageError
from .cost import Hardware, Workload
from .plan import Plan, UnitPlan
from .shares import least_work
from .survey import Survey
from .work import Work, work_of


def works_of(
    plan: Plan, found: Survey, machine: Hardware, workload: Workload, rules: tuple[Path, ...]
) -> tuple[dict[UnitPlan, Work], tuple[str, ...]]:
    """What the units of a plan compute, read and keep on a rank, and of what that is not known, with the reason."""
    works, unknown = {}, []
    shapes = {unit.path: unit.shape for unit in found.units}
    for unit in plan.units:
        traced = found.traced.get(shapes.get(unit.instances[0], -1))
        try:
            if traced is None:
                raise UsageError("it is not traced")
            works[unit] = work_of(unit, traced, machine, workload, rules, plan.tp)
        except AutotpError as error:
            unknown.append(f"{unit.instances[0] or 'the model'}: {error}")
            # Of another system's plan, say: what is cut as no operator is computes a share of the whole.
            if traced is not None:
                works[unit] = least_work(unit, traced, machine, workload, rules)
    matrices = [p for p in plan.outside if len(p.shape) > 1]
    if matrices:
        first = matrices[0]
        unknown.append(f"{len(matrices)} matrices outside of all units, as {first.name}: {first.reason}")
    return works, tuple(unknown)
