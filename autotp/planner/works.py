"""The work of all units of a plan."""

from __future__ import annotations

from pathlib import Path

from ..capture.traced import Traced
from ..errors import AutotpError, UsageError
from .cost import Hardware, Workload
from .plan import Plan, UnitPlan
from .shares import by_segments, least_work
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
            if traced is not None:
                works[unit] = _of_another_system(unit, traced, machine, workload, rules, plan.tp)
    matrices = [p for p in plan.outside if len(p.shape) > 1]
    if matrices:
        first = matrices[0]
        unknown.append(f"{len(matrices)} matrices outside of all units, as {first.name}: {first.reason}")
    return works, tuple(unknown)


def _of_another_system(
    unit: UnitPlan, traced: Traced, machine: Hardware, workload: Workload, rules: tuple[Path, ...], ranks: int
) -> Work:
    """The work of a unit that is cut as no operator is: with segments cut each by itself, or a share of the whole."""
    try:
        return work_of(by_segments(unit, traced, rules), traced, machine, workload, rules, ranks)
    except AutotpError:
        return least_work(unit, traced, machine, workload, rules)
