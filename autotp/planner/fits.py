"""Whether a plan is about a model: exactly its parameters, in units that it has."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..errors import PlanError
from ..outside.data import brief
from .parameters import Parameters
from .plan import Plan


def check_fits(model: nn.Module, plan: Plan, units: Mapping[str, int]) -> None:
    """Raises PlanError unless every unit of the plan is one of the model's, beside equal ones only, and every parameter is in the
    plan once, in its shape. `units` are the paths of the model's units with a number for each structure."""
    for unit in plan.units:
        for path in unit.instances:
            if path not in units:
                raise PlanError(
                    f"the plan has the instance {brief(path)}, and no unit of the model is there; make a new plan"
                )
            if units[path] != units[unit.instances[0]]:
                raise PlanError(
                    f"the plan has {brief(path)} in one unit with {brief(unit.instances[0])}, and they differ in structure;"
                    " give each structure a unit of its own"
                )
    parameters = Parameters(model)
    shapes = parameters.shapes()
    planned = plan.parameter_shapes()
    if more := sorted(planned.keys() - shapes.keys()):
        raise PlanError(f"the plan has the parameter {brief(more[0])}, which the model has not; make a new plan")
    if less := sorted(shapes.keys() - planned.keys()):
        raise PlanError(f"the plan lacks the parameter {brief(less[0])} of the model; make a new plan")
    for name, shape in shapes.items():
        if planned[name] != shape:
            raise PlanError(
                f"the plan has {brief(name)} in the shape {planned[name]}, the model in {shape}; make a new plan"
            )
    tied = set(map(frozenset, parameters.tied()))
    said = {frozenset(names) for names in plan.tied}
    for names in said ^ tied:
        where = "the plan" if names in said else "the model"
        raise PlanError(f"only in {where} {', '.join(map(brief, sorted(names)))} are tied together; make a new plan")
