"""What does not divide: parameters that are padded, and those that several ranks hold alike although they are cut."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..axes.layout import is_padded
from .plan import ParameterPlan, Plan


def padded(plan: Plan) -> list[str]:
    """Names of parameters that are padded with zeros so that they divide."""
    return _names(plan, lambda parameter: any(map(is_padded, parameter.parsed())))


def shared(plan: Plan) -> list[str]:
    """Names of cut parameters with fewer parts than there are ranks, or in which some segments are."""
    return _names(plan, lambda parameter: _shares(parameter, plan.tp))


def _shares(parameter: ParameterPlan, ranks: int) -> bool:
    if parameter.placement == "replicated":
        return False
    layouts = parameter.parsed()
    return parameter.local_elements * ranks > math.prod(layout.padded_size for layout in layouts)


def _names(plan: Plan, wanted: Callable[[ParameterPlan], bool]) -> list[str]:
    return [
        f"{path}.{p.name}".lstrip(".")
        for unit in plan.units
        for p in unit.parameters
        if wanted(p)
        for path in unit.instances
    ]
