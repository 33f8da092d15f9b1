"""A plan for a model to which modules were added: what is cut stays cut as it is, and what is new follows.

A correction that is added to the output of a column-parallel layer has that output's axes, and one that reads the input of
a row-parallel layer has those: once the cuts of the old parameters are imposed on the axes, nothing is left to choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import nn

from ..axes.layout import Layout
from ..errors import PlanError
from ..placement.impose import impose
from .assemble import unit_plan
from .choose import Choice, UnitProblem, local_elements, weighed
from .cost import Hardware, Workload
from .make import outside
from .parameters import Parameters
from .plan import Plan, UnitPlan
from .survey import Survey
from .weigh import Weigher


def extend_plan(
    plan: Plan, model: nn.Module, found: Survey, held: Mapping[str, tuple[Layout, ...]], machine: Hardware
) -> Plan:
    """The plan of a model's dense structure in which the parameters in `held` are cut as they are already. Where values cut over
    positions begin and end is for `with_boundaries` to say again.

    Raises PlanError if such a parameter is now where nothing can be cut, UnsoundPlanError if its cut is not possible there.
    """
    _check_traced(found, held)
    workload = Workload(plan.tokens, plan.element_bytes)
    keep = any(unit.keep for unit in plan.units)
    sequence = plan.tp if any(unit.sequence for unit in plan.units) else 0
    units = tuple(_units(found, held, machine, workload, keep, sequence))
    parameters = Parameters(model)
    rest, tied = tuple(outside(parameters, found, units)), tuple(map(tuple, parameters.tied()))
    return replace(plan, fingerprint=parameters.fingerprint(), units=units, outside=rest, tied=tied, around=())


def _check_traced(found: Survey, held: Mapping[str, object]) -> None:
    for path, reason in found.failures.items():
        cut = next((name for name in held if name.startswith(path + ".") or not path), None)
        if cut is not None:
            raise PlanError(f"{cut} is cut, and {path or 'the model'} can be no unit as it is now: {reason}")


def _units(
    found: Survey,
    held: Mapping[str, tuple[Layout, ...]],
    machine: Hardware,
    workload: Workload,
    keep: bool,
    sequence: int,
) -> Iterable[UnitPlan]:
    for shape, problem in found.problems.items():
        paths = tuple(unit.path for unit in found.units if unit.shape == shape and unit.path not in found.failures)
        if paths:
            prefix = paths[0] + "." if paths[0] else ""
            own = {name: held[prefix + name] for name in problem.parameters() if prefix + name in held}
            weigher = Weigher(problem.graph, machine, workload)
            settled = replace(problem, keep=keep and problem.is_head, sequence=sequence)
            yield unit_plan(paths, settled, imposed_choice(settled, own, weigher), weigher)


def imposed_choice(problem: UnitProblem, held: Mapping[str, tuple[Layout, ...]], weigher: Weigher) -> Choice:
    """The only choice for a unit of which the parameters in `held` are cut already. Raises UnsoundPlanError if there is none."""
    cuts = impose(problem.graph, problem.typing, held, others_follow=True)
    return weighed(problem, cuts, local_elements(problem, cuts), weigher)
