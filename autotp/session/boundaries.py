"""Where a value that is cut over positions begins and ends: the model's own Python is run once on tensors without data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..axes.layout import Factors, parts_of
from ..capture.record import record
from ..capture.signature import call_site
from ..capture.units import Unit
from ..errors import PlanError, TraceError
from ..placement.place import Placement
from ..planner.assemble import collective_plan
from ..planner.cost import Workload, hardware
from ..planner.plan import CollectivePlan, Plan, UnitPlan
from ..planner.survey import Example, Survey
from ..planner.weigh import Weigher
from ..planner.work import placed_as_planned
from ..runtime.groups.log import CollectiveLog
from ..runtime.groups.ranks import Ranks
from ..runtime.results.sequence import cut_over_positions
from ..runtime.results.settled import settle
from ..runtime.results.tensor import CutResult, closed

Placed: TypeAlias = tuple[Placement, Weigher]


class _Pretended(Ranks):
    """The first of several ranks, whose others answer what this one says; it notes what it asks them."""

    def __init__(self, size: int) -> None:
        super().__init__(0, size)
        self._log = self.asked = CollectiveLog()

    def _all_gather(self, value: torch.Tensor, factors: Factors) -> list[torch.Tensor]:
        return [value] * parts_of(factors)


@dataclass
class _Recorder:
    """`kinds` says of every unit that is cut, by its path, which tensor of its call, and which of its result, is."""

    model: nn.Module
    tp: int
    kinds: dict[str, tuple[int, frozenset[int]]]
    begins: list[Unit] = field(default_factory=list)
    handed: list[tuple[Unit, _Pretended]] = field(default_factory=list)
    last: Unit | None = None

    def taken(self, unit: Unit, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """A unit's call: what is cut becomes whole, at no cost where the unit takes it cut."""
        self.last = unit
        site = call_site(unit.module(self.model), args, kwargs)
        number = self.kinds[unit.path][0] if unit.path in self.kinds else None
        tensors = []
        for i, tensor in enumerate(site.tensors):
            if i == number and isinstance(tensor, CutResult):
                tensors.append(torch.empty_like(tensor.local).new_empty(tensor.shape).requires_grad_())
            else:
                if i == number and tensor.requires_grad:
                    self.begins.append(unit)
                tensors.append(closed(tensor))
        return site.rebuild(tensors, site.numbers, site.handles)

    def given(self, shape: int, result: Any) -> Any:
        """A unit's result, cut where the unit hands it on so."""
        unit, ranks = self.last, _Pretended(self.tp)
        if unit is None or unit.path not in self.kinds:
            return result
        self.handed.append((unit, ranks))
        leaves, spec = pytree.tree_flatten(result)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        for number in self.kinds[unit.path][1]:
            leaves[places[number]] = cut_over_positions(leaves[places[number]], ranks)
        return pytree.tree_unflatten(leaves, spec)


def with_boundaries(
    model: nn.Module, found: Survey, plan: Plan, example: Example, rules: tuple[Path, ...] = ()
) -> Plan:
    """The plan with the collectives around units that are cut over positions: where the first one takes a whole value, and
    where somebody reads what one hands on."""
    cut = [(unit, _placed(found, plan, unit, rules)) for unit in plan.units if unit.sequence]
    placed = {path: each for unit, each in cut for path in unit.instances}
    if not placed:
        return replace(plan, around=())
    kinds = {}
    for path, (placement, _) in placed.items():
        over = placement.sequence
        assert over is not None
        (output,) = placement.typed.graph.find_nodes(op="output")
        kinds[path] = over.number, frozenset(i for i, node in enumerate(output.args[0]) if node is over.result)
    recorder = _Recorder(model, plan.tp, kinds)
    try:
        recording = record(model, found.units, *example, given=recorder.given, taken=recorder.taken)
    except TraceError as error:
        raise PlanError(f"the Python between blocks cannot read values cut over positions: {error}") from error
    settle(model, (), recording.result)
    ends = [unit for unit, ranks in recorder.handed for _ in ranks.asked.calls]
    around = [
        *(_boundary(unit, placed, "all_gather", "backward") for unit in recorder.begins),
        *(_boundary(unit, placed, "all_gather", "forward") for unit in ends),
    ]
    return replace(plan, around=tuple(around))


def _placed(found: Survey, plan: Plan, unit: UnitPlan, rules: tuple[Path, ...]) -> Placed:
    machine, workload = hardware(plan.hardware, rules), Workload(plan.tokens, plan.element_bytes)
    shape = next(each.shape for each in found.units if each.path == unit.instances[0])
    return placed_as_planned(unit, found.traced[shape], machine, workload, rules, plan.tp)


def _boundary(unit: Unit, placed: Mapping[str, Placed], kind: str, phase: str) -> CollectivePlan:
    """One all-gather of what a unit takes or hands on; its node is the unit."""
    placement, weigher = placed[unit.path]
    return replace(collective_plan(weigher.of_positions(placement, kind, phase)), nodes=(unit.path,))
