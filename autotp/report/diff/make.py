"""Making the difference: the traced graph of every unit beside the one that a rank runs, node by node.

Nodes are paired by their recorded origin (see `rewrite.build`), never by resemblance.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from ...capture.clone import on_meta
from ...capture.units import Unit
from ...dispatch.apply import apply_plan, make_compilers
from ...errors import PlanError
from ...placement.certificate.check import certify
from ...planner.assemble import collective_plan
from ...planner.cost import Workload, hardware
from ...planner.plan import Plan, UnitPlan
from ...planner.survey import Survey
from ...planner.work import placed_as_planned
from ...rewrite.build import build
from ...rewrite.layers import parallel_layers
from ...runtime.groups.ranks import Ranks
from ...runtime.layers.parallel import layer_of
from .data import Diff, LayerChange, UnitDiff
from .sides import Sides
from .steps import make_steps

UNCUT = "nothing of it is cut, so it runs as it is"


def make_diff(model: nn.Module, found: Survey, plan: Plan, rules: tuple[Path, ...] = ()) -> Diff:
    """What a plan does to a surveyed model. No weight is read, and the model is left as it is.

    The plan in the result has the collectives that its layouts need, also where those of an edited plan are out of date.
    Raises PlanError for a plan of another model, UnsoundPlanError for one that cuts what must stay whole.
    """
    dense = on_meta(model)
    parallel = apply_plan(on_meta(model), plan, Ranks(0, plan.tp), make_compilers(plan, found, rules))
    maker = _Maker(dense, parallel, found, plan, rules)
    pairs = [maker.unit(unit) for unit in plan.units]
    return Diff(replace(plan, units=tuple(unit for unit, _ in pairs)), tuple(changes for _, changes in pairs))


class _Maker:
    def __init__(
        self, dense: nn.Module, parallel: nn.Module, found: Survey, plan: Plan, rules: tuple[Path, ...]
    ) -> None:
        self.dense, self.parallel, self.found, self.plan, self.rules = dense, parallel, found, plan, rules
        self.machine, self.workload = hardware(plan.hardware, rules), Workload(plan.tokens, plan.element_bytes)

    def unit(self, plan: UnitPlan) -> tuple[UnitPlan, UnitDiff]:
        """The difference in one unit, and the unit's plan with the collectives that its layouts need."""
        unit = next((unit for unit in self.found.units if unit.path in plan.instances), None)
        if unit is None or unit.shape not in self.found.traced:
            raise PlanError(
                f"the plan has the unit {plan.instances[0] or '(the whole model)'}, which this model is not traced in; "
                "make a new plan with autotp.plan(...)"
            )
        module = type(self.dense.get_submodule(unit.path)).__name__
        if not plan.layouts():
            unchanged = UnitDiff(plan.instances, module, (), (), (), UNCUT)
            return replace(plan, collectives=()), unchanged
        layers = self._layers(unit)
        sides = self._sides(plan, unit, layers)
        steps = make_steps(sides, plan, self.plan.tp)
        changes = UnitDiff(plan.instances, module, steps, sides.cut_axes(plan), tuple(layers.values()))
        return replace(plan, collectives=tuple(map(collective_plan, sides.priced))), changes

    def _layers(self, unit: Unit) -> dict[str, LayerChange]:
        """The modules of a unit that became parallel layers, by path."""
        dense = dict(self.dense.get_submodule(unit.path).named_modules())
        return {
            path: LayerChange(path, type(dense[path]).__name__, type(layer).__name__)
            for path, module in self.parallel.get_submodule(unit.path).named_modules()
            if (layer := layer_of(module)) is not None
        }

    def _sides(self, plan: UnitPlan, unit: Unit, layers: dict[str, LayerChange]) -> Sides:
        """Both graphs, made as a rank makes them (see `dispatch.compiler.Compiler`)."""
        traced = self.found.traced[unit.shape]
        placement, weigher = placed_as_planned(plan, traced, self.machine, self.workload, self.rules, self.plan.tp)
        priced = tuple(weigher.collectives(placement))
        facts = {node.name: (node, fact) for node, fact in placement.typed.facts.items()}
        work = parallel_layers(self.parallel.get_submodule(unit.path))
        program = build(placement, traced.constants, unit.path, work)
        certificate = certify(program.graph, placement.contract)
        return Sides(
            traced.graph,
            program.graph,
            certificate,
            placement.flow,
            facts,
            priced,
            weigher.sizing,
            layers,
            placement.sequence,
        )
