"""The pipeline: survey -> plan -> programs, for everything that is public."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Unpack

import torch
from torch import nn

from ..axes.layout import Layout
from ..capture.capturing import capturing
from ..capture.clone import on_meta
from ..dispatch.apply import check_plan, make_compilers
from ..dispatch.calls import UnitCalls, calls_of
from ..dispatch.compiler import Compiler
from ..errors import PlanError
from ..huggingface import models
from ..huggingface.examples import examples_for
from ..outside.progress import doing
from ..planner import cost
from ..planner.cost import DEFAULT_HARDWARE, Workload
from ..planner.extend import extend_plan
from ..planner.make import make_plan
from ..planner.objective import objective_of
from ..planner.plan import Plan, UnitPlan
from ..planner.positions import best_positions
from ..planner.settings import apply_settings
from ..planner.survey import Example, Survey, survey
from ..report.diff.data import Diff
from ..report.diff.make import make_diff
from .arguments import AUTO, Wishes, check_size, check_wishes, rule_folders
from .boundaries import with_boundaries
from .gate import accept

PRECISION = torch.bfloat16  # of two bytes, as plans count


class Session:
    """A dense model and how it is asked to be cut. It is surveyed once, when that is first needed, and left as it is.

    Args:
        model: the dense module.
        example: as for `autotp.plan`.
        wishes: as for `autotp.plan`.

    Raises:
        UsageError: an argument is wrong.
        RuleError: a rule file is wrong.
    """

    def __init__(self, model: nn.Module, *, example: object = None, **wishes: Unpack[Wishes]) -> None:
        check_wishes(wishes)
        self.module, self.example, self.folders = model, example, rule_folders(wishes.get("rules", ()))
        self.machine = cost.hardware(wishes.get("hardware", DEFAULT_HARDWARE), self.folders)
        self.workload = Workload(tokens=wishes.get("tokens", Workload.tokens))
        self.wanted = wishes.get("objective", "balanced")
        self.objective = objective_of(
            self.wanted,
            wishes.get("workload", "mix"),
            wishes.get("memory_gib"),
            self.machine,
            self.workload,
        )
        self.settings = dict(wishes.get("settings") or {})
        self.gather_logits = wishes.get("gather_logits", True)
        self.sequence_parallel = wishes.get("sequence_parallel", False)

    @property
    def knows_inputs(self) -> bool:
        """Whether it is known what the model is called with."""
        return self.example is not None or models.is_transformers_model(self.module)

    @property
    def is_surveyed(self) -> bool:
        """Whether the model was surveyed before."""
        return "found" in vars(self)

    @cached_property
    def examples(self) -> list[Example]:
        """The calls that the model is surveyed in."""
        return examples_for(self.module, self.example)

    @cached_property
    def found(self) -> Survey:
        """The survey of the model."""
        with doing(f"tracing the blocks of {type(self.module).__name__}"):
            writes = self.objective is not None and any(phase.keys for phase in self.objective.phases)
            found = self._keeping_cache(self.module, self.wanted) if writes else None
            if found is None or found.failures:
                found = survey(self.module, self.examples, self.folders, objective=self.wanted)
        return apply_settings(self.module, found, self.settings)

    @cached_property
    def working(self) -> Survey:
        """The model as it works: in the precision that is planned for, and with a cache where it takes one."""
        model = on_meta(self.module).to(PRECISION)
        found = self._keeping_cache(model)
        if found is not None and not found.failures.keys() - self.found.failures.keys():
            return found
        return survey(model, self.examples, self.folders)

    def _keeping_cache(self, model: nn.Module, objective: str = "balanced") -> Survey | None:
        """The survey of a model in calls that keep a cache, which tell what writing a token reads of it. None where none are
        known."""
        if self.example is not None or not models.is_transformers_model(model):
            return None
        calls: list[Example] = [((), call) for call in models.cached_inputs(model)]
        return survey(model, calls, self.folders, objective=objective)

    @capturing()
    def plan(self, tp: int) -> Plan:
        """The best plan for so many ranks."""
        check_size(tp)
        if self.sequence_parallel != AUTO:
            return self._made(tp, bool(self.sequence_parallel))
        whole = self._made(tp, False)
        try:
            cut = self._made(tp, True)
        except PlanError as error:
            return replace(whole, positions=f"positions stay whole: {error}")
        given = self.working, self.machine, self.workload, self.folders
        return best_positions(whole, cut, *given, self.bounded)

    def _made(self, tp: int, sequence_parallel: bool) -> Plan:
        made = make_plan(
            self.module,
            self.found,
            tp,
            self.machine,
            self.workload,
            objective=self.objective,
            gather_logits=self.gather_logits,
            sequence_parallel=sequence_parallel,
        )
        return self.bounded(made)

    @capturing()
    def extended(self, plan: Plan, held: Mapping[str, tuple[Layout, ...]]) -> Plan:
        """A plan made for some of the modules as one for all: the parameters in `held` stay cut as they are."""
        return self.bounded(extend_plan(plan, self.module, self.found, held, self.machine))

    @capturing()
    def bounded(self, plan: Plan) -> Plan:
        """A plan with what is sent where values cut over positions begin and end."""
        return with_boundaries(self.module, self.found, plan, self.examples[0], self.folders)

    @capturing()
    def accepted(self, plan: Plan, tp: int) -> Plan:
        """A plan that somebody gives, proved sound, with the collectives that its layouts need.

        Raises PlanError if it is for another model or number of ranks, UnsoundPlanError or PlacementError if it is unsound.
        """
        check_plan(self.module, plan, tp)
        return accept(plan, self.found, self.folders)

    @capturing()
    def diff(self, plan: Plan) -> Diff:
        """What a plan does to the graph of every unit."""
        return make_diff(self.module, self.found, plan, self.folders)

    def calls(self, plan: Plan) -> tuple[UnitCalls, ...]:
        """What the survey says of the calls of a plan's units."""
        return calls_of(plan, self.found)

    def compilers(self, plan: Plan, *, keeps: bool = False) -> dict[UnitPlan, Compiler]:
        """What makes the programs of every unit under a plan; traces are used again where there are some, or can be. With `keeps`
        they keep others on disk."""
        found = self.found if self.is_surveyed or self.knows_inputs else None
        return make_compilers(plan, found, self.folders, keeps=keeps)
