"""Applying a plan to a model on one rank: cut the parameters, give modules their layers, replace the units' forwards."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..axes.layout import Layout
from ..capture.opaque import Widths
from ..capture.units import Unit, find_units
from ..capture.varying import VaryingDims
from ..errors import PlanError
from ..placement.backward import Values
from ..planner.cost import Workload, hardware
from ..planner.fits import check_fits
from ..planner.parameters import Parameters
from ..planner.plan import ParameterPlan, Plan, UnitPlan
from ..planner.survey import Survey
from ..planner.weigh import Weigher
from ..runtime.cut import fsdp as fsdp  # it sees parts from here on
from ..runtime.cut.origin import IsCut, Origin
from ..runtime.cut.tensor import cut_in_place
from ..runtime.groups.ranks import Ranks
from ..runtime.layers.parallel import (
    LAYER,
    ColumnParallelLinear,
    ParallelLayer,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelHead,
)
from ..runtime.results.settled import settle
from .calls import UnitCalls, calls_of, traces_of
from .compiler import Compiler
from .held import ATTRIBUTE, held_in, join_path
from .memory import check_memory, part_gradients
from .unit import UnitForward

MSG_OTHERWISE = "{name} is cut already, otherwise than planned; make only the whole model parallel"


@dataclass
class Parallel:
    """What a parallelized model knows of itself, kept on the model: `modules` are the paths of all its modules."""

    plan: Plan
    ranks: Ranks
    layouts: dict[str, tuple[Layout, ...]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    modules: tuple[str, ...] = ()


def make_compilers(
    plan: Plan,
    found: Survey | None,
    rules: tuple[Path, ...] = (),
    calls: Sequence[UnitCalls] | None = None,
    *,
    keeps: bool = False,
) -> dict[UnitPlan, Compiler]:
    """One compiler for every unit plan; ranks simulated in one process share them. What is not known of the units' `calls` is
    what the survey says; without either, nothing is. With `keeps` they keep traces on disk."""
    weigher, widths = _Prices(plan, rules), Widths()
    traces = {} if found is None else traces_of(plan, found)
    if calls is None:
        calls, is_proved = (() if found is None else calls_of(plan, found)), False
    else:
        is_proved = True
    known = {each.unit: each for each in calls}
    compilers = {}
    for unit in plan.units:
        of_calls = known.get(unit.instances[0], UnitCalls(unit.instances[0]))
        compilers[unit] = Compiler(
            unit.layouts(),
            weigher,
            unit.collected,
            VaryingDims(of_calls.seen),
            frozenset(of_calls.unread),
            rules,
            traces.get(unit.instances[0]),
            frozenset(parameter.name for parameter in unit.parameters),
            frozenset(of_calls.wanting),
            Widths(widths),
            unit.keep,
            plan.tp if unit.sequence else 0,
            is_proved=is_proved and unit.instances[0] in known,
            keeps=keeps,
        )
    return compilers


class _Prices:
    """Prices of collectives on the plan's hardware at its workload, for any graph."""

    def __init__(self, plan: Plan, rules: tuple[Path, ...]) -> None:
        self.machine, self.workload = hardware(plan.hardware, rules), Workload(plan.tokens, plan.element_bytes)
        self._weighers: dict[torch.fx.Graph, Weigher] = {}

    def __call__(self, kind: str, values: Values, ranks: int) -> float:
        graph = values[0][0].graph
        if graph not in self._weighers:
            self._weighers = {graph: Weigher(graph, self.machine, self.workload)}
        return self._weighers[graph].price(kind, values, ranks)


def apply_plan(model: nn.Module, plan: Plan, ranks: Ranks, compilers: Mapping[UnitPlan, Compiler]) -> nn.Module:
    """Make a dense model one rank's part of a parallel one, in place.

    Raises PlanError, before anything is changed, if the plan is for another model or another number of ranks.
    """
    units = check_plan(model, plan, ranks.size)
    install(model, units, plan, ranks, compilers)
    model.register_forward_hook(settle)
    return model


def install(
    model: nn.Module, found: Iterable[Unit], plan: Plan, ranks: Ranks, compilers: Mapping[UnitPlan, Compiler]
) -> None:
    """Cut what is not cut yet, give the layers and replace the forwards of a model; `found` are the units of its dense structure.

    Raises UsageError, before anything is changed, if the memory of what is to be cut belongs to other tensors as well, and
    PlanError if something in the model is cut otherwise already.
    """
    _check_cuts(model, plan)
    units = {unit.path: unit for unit in found}
    check_memory(model, (join_path(p, n) for unit in plan.units for p in unit.instances for n in unit.layouts()))
    part_gradients(model)
    state = Parallel(plan, ranks)
    _leave_units(model)
    forwards = [
        UnitForward(model.get_submodule(path), units[path], compilers[unit], ranks)
        for unit in plan.units
        if unit.layouts()
        for path in unit.instances
    ]
    for unit in plan.units:
        for path in unit.instances:
            _cut_unit(model, path, unit, ranks)
    for name, origin in held_in(model):
        state.layouts[name], state.shapes[name] = origin.layouts, tuple(origin.shape)
    for forward in forwards:
        forward.enter()
    last = next((module for module in reversed(list(model.modules())) if module._parameters), None)
    for forward in forwards:
        forward.ends = weakref.ref(model) if any(part is last for part in forward.module.modules()) else None
    state.modules = module_paths(model)
    model.__dict__[ATTRIBUTE] = state


def _check_cuts(model: nn.Module, plan: Plan) -> None:
    """Raises PlanError unless what is cut already, as in a part that was made parallel by itself, is cut as planned."""
    planned = {
        id(model.get_parameter(join_path(path, name))): layouts
        for unit in plan.units
        for path in unit.instances
        for name, layouts in unit.layouts().items()
    }
    for name, origin in held_in(model):
        if planned.get(id(model.get_parameter(name))) != origin.layouts:
            raise PlanError(MSG_OTHERWISE.format(name=name))


def _leave_units(model: nn.Module) -> None:
    """Let units have their own forwards again: those of a part that was made parallel by itself, whose units may be others."""
    for module in model.modules():
        if isinstance(forward := module.__dict__.get("forward"), UnitForward):
            forward.leave()


def module_paths(model: nn.Module) -> tuple[str, ...]:
    """Where the modules of a model are: other paths, another structure."""
    return tuple(path for path, _ in model.named_modules())


def check_plan(model: nn.Module, plan: Plan, size: int) -> tuple[Unit, ...]:
    """The units of the model. Raises PlanError unless the plan is for this model and this number of ranks."""
    if ATTRIBUTE in model.__dict__:
        raise PlanError("the model is parallel already; start from a dense one")
    if plan.tp != size:
        raise PlanError(
            f"the plan is for {plan.tp} ranks, the group has {size}; make one with autotp.plan(model, tp={size})"
        )
    if plan.fingerprint != Parameters(model).fingerprint():
        raise PlanError(
            f"the plan is for another model ({plan.model}): parameter names or shapes differ from this {type(model).__name__}"
        )
    plan.check()
    units = planned_units(model, plan)
    check_fits(model, plan, {unit.path: unit.shape for unit in units})
    return units


def planned_units(model: nn.Module, plan: Plan) -> tuple[Unit, ...]:
    """The model's units, split as finely as the plan's are."""
    wanted = {path for unit in plan.units for path in unit.instances}
    split: frozenset[str] = frozenset()
    while True:
        units = find_units(model, split)
        prefixes = {u.path for u in units if u.path not in wanted and any(_is_inside(w, u.path) for w in wanted)}
        if not prefixes - split:
            return units
        split |= prefixes


def _is_inside(path: str, parent: str) -> bool:
    return path.startswith(parent + ".") or (not parent and bool(path))


def _cut_unit(model: nn.Module, path: str, unit: UnitPlan, ranks: Ranks) -> None:
    for name, layouts in unit.layouts().items():
        owner_path, _, own_name = join_path(path, name).rpartition(".")
        module = model.get_submodule(owner_path)
        whole = module._parameters[own_name]
        assert whole is not None
        if not isinstance(whole, IsCut):  # else it was cut before, or is tied to one that was
            cut_in_place(whole, Origin(layouts, ranks, join_path(path, name)))
    for parameter in unit.parameters:
        if parameter.name in unit.layouts():
            _give_layer(model, path, parameter, unit, ranks)


_KINDS: Mapping[str, type[ParallelLayer]] = {
    "column": ColumnParallelLinear,
    "row": RowParallelLinear,
    "vocabulary": VocabParallelEmbedding,
}


def _give_layer(model: nn.Module, path: str, parameter: ParameterPlan, unit: UnitPlan, ranks: Ranks) -> None:
    """Give the module whose only work is this weight its parallel layer."""
    owner_path, _, short = parameter.name.rpartition(".")
    module = model.get_submodule(".".join(filter(None, (path, owner_path))))
    simple = not list(module.children()) and set(module._parameters) <= {"weight", "bias"} and len(parameter.shape) == 2
    if short != "weight" or not simple or LAYER in module.__dict__:
        return
    layouts = unit.layouts()
    prefix = owner_path + "." if owner_path else ""
    own: dict[str, Any] = {n: layouts[prefix + n] for n in ("weight", "bias") if prefix + n in layouts}
    kind = _KINDS.get(parameter.placement)
    if kind is None:
        return  # a cut that was edited in: the operator itself runs on what the rank holds
    if kind is ColumnParallelLinear and not owner_path:
        kind = VocabParallelHead
    module.__dict__[LAYER] = kind(module, ranks, own, _is_transposed(parameter, own))


def _is_transposed(parameter: ParameterPlan, own: Mapping[str, Any]) -> bool:
    """Returns if a weight is kept as (in, out): a column weight is then cut in its second dim, a row weight in its first."""
    cut = [i for i, layout in enumerate(parameter.parsed()) if layout.local_size != layout.size or "/" in str(layout)]
    return cut == [1] if parameter.placement == "column" else cut == [0] if parameter.placement == "row" else False
