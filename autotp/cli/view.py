"""What a command shows of plans, and as what text. Nothing here imports torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import RenderableType

from ..outside.console import make_console
from ..outside.progress import working
from ..planner.estimate import Estimate
from ..planner.plan import Plan
from ..report import paragraphs, plan_estimate, plan_left_whole, plan_sizes, plan_summary, plan_tree, plan_units

Estimator = Callable[[Plan], Estimate]


def plan_view(plan: Plan, estimate: Estimator, as_json: bool) -> RenderableType:
    """Everything about one plan."""
    if as_json:
        return plan.to_json()
    with working("estimating memory and time"):
        estimated = estimate(plan)
    tables = (*plan_estimate(estimated), plan_tree(plan), *plan_units(plan), plan_left_whole(plan))
    return paragraphs((plan_summary(plan), *tables))


def sizes_view(plans: Iterable[Plan], estimate: Estimator, as_json: bool) -> RenderableType:
    """Several plans of a model beside each other."""
    with working("estimating memory and time"):
        pairs = [(plan, estimate(plan)) for plan in plans]
    return as_text([dataclasses.asdict(estimated) for _, estimated in pairs]) if as_json else plan_sizes(pairs)


def as_text(data: Any) -> str:
    """Data as JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def text_of(view: RenderableType) -> str:
    """What a console shows; a text as it is."""
    if isinstance(view, str):
        return view
    console = make_console()
    with console.capture() as captured:
        console.print(view)
    return captured.get()
