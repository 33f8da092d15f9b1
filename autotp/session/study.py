"""One model looked at from several sides: plans of several sizes, what they cost, and why they are as they are."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from ..capture.capturing import capturing
from ..dispatch.apply import check_plan
from ..errors import AutotpError, UsageError
from ..huggingface import models, tp_plan
from ..huggingface.losses import reading_of_logits
from ..planner.assemble import collective_plan
from ..planner.estimate import Estimate, estimate
from ..planner.plan import Plan, UnitPlan
from ..planner.why import Why, why
from ..planner.work import placed_as_planned
from ..planner.works import works_of
from ..report.export import export
from .arguments import Source, Wishes
from .pipeline import Session


class Study(Session):
    """One model, and questions about it: plans of several sizes, what they cost, and the reasons for them.

    Args:
        model: as for `autotp.plan`.
        example: as for `autotp.plan`.
        wishes: as for `autotp.plan`.
    """

    def __init__(self, model: Source, *, example: object = None, **wishes: Unpack[Wishes]) -> None:
        super().__init__(models.resolve(model), example=example, **wishes)

    @capturing()
    def plan(self, tp: int) -> Plan:
        """The best plan for `tp` ranks, with a sentence on the loss."""
        made = super().plan(tp)
        return replace(made, loss=self.loss) if self.gather_logits and tp > 1 else made

    @cached_property
    def loss(self) -> str:
        """In words, what a loss adds to the work of the units."""
        return reading_of_logits(self.module, self.found)

    def read(self, plan: Plan) -> Plan:
        """An edited plan with the collectives that its layouts need. Raises PlanError or UnsoundPlanError if it is refused."""
        check_plan(self.module, plan, plan.tp)
        return self.bounded(self.diff(plan).plan)

    def why(self, plan: Plan, parameter: str) -> Why:
        """Why one parameter is placed as it is. Raises UsageError naming the nearest parameter for an unknown one."""
        return why(self.found, plan, parameter, self.machine, self.workload)

    def estimate(self, plan: Plan, batch: int = 1) -> Estimate:
        """Memory and time of a rank under a plan. The tokens of a step are in `batch` sequences of equal length."""
        if batch < 1 or self.workload.tokens % batch:
            raise UsageError(f"{self.workload.tokens} tokens cannot be {batch} sequences of equal length")
        return self.estimate_of(plan, batch, self.workload.tokens // batch)

    def estimate_of(self, plan: Plan, batch: int, sequence: int) -> Estimate:
        """What a plan means for a rank at a batch and a sequence."""
        works, unknown = works_of(plan, self.working, self.machine, self.workload, self.folders)
        return estimate(plan, works, self.machine, batch, sequence, unknown, self.without_backward(plan))

    def export(self, plan: Plan, system: str) -> Any:
        """A plan for another system, as plain data. Raises PlanError for one that it cannot express, with the reason."""
        check_plan(self.module, plan, plan.tp)
        return export(self.module, self.diff(plan), system, self.examples)

    def against(self, plan: Plan, other: str | Path) -> tuple[Plan, str]:
        """What transformers would do instead, and what to call it: with its own styles for this model ("tp_plan"), with
        those that a person would write where it has none, or with those of a file."""
        styles, name = tp_plan.own_styles(self.module), "transformers"
        if str(other) != "tp_plan":
            styles, name = tp_plan.read_styles(Path(other)), Path(other).name
        elif not styles:
            styles, name = tp_plan.layer_styles(plan), "layer by layer"
        return tp_plan.plan_of_styles(self.module, plan, styles, self.machine), name

    def without_backward(self, plan: Plan) -> Plan:
        """The plan as it holds where nothing is kept for a backward: sums wait elsewhere, and no unit is cut over positions. What
        is cut as no operator is (by another system) stays as it is."""
        shapes = {unit.path: unit.shape for unit in self.found.units}

        def alone(unit: UnitPlan) -> UnitPlan:
            traced = self.found.traced[shapes[unit.instances[0]]]
            given = unit, traced, self.machine, self.workload, self.folders, plan.tp
            try:
                placed, weigher = placed_as_planned(*given, backward=False)
            except AutotpError:
                return replace(unit, sequence=False)
            sent = (each for each in weigher.collectives(placed) if each.phase == "forward")
            return replace(unit, sequence=False, collectives=tuple(map(collective_plan, sent)))

        return replace(plan, units=tuple(map(alone, plan.units)), around=())
