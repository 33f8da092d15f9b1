"""Making a plan: choose every unit's cuts, keep tied parameters alike, write it down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from torch import nn

from ..chains.match import Proposal
from ..errors import UsageError
from ..placement.place import Waits
from .assemble import unit_plan
from .choose import Choice, UnitProblem, without
from .cost import DEFAULT_HARDWARE, Hardware, Workload, hardware
from .objective import LEAST_MEMORY, Objective
from .parameters import Parameters
from .plan import VERSION, OutsidePlan, Plan, UnitPlan
from .select import LeastMemory, LeastTime, Select
from .survey import Survey
from .tied import choose_tied
from .weigh import Weigher


def make_plan(
    model: nn.Module,
    found: Survey,
    tp: int,
    machine: Hardware | None = None,
    workload: Workload | None = None,
    *,
    objective: Objective | None = None,
    gather_logits: bool = True,
    sequence_parallel: bool = False,
) -> Plan:
    """The best plan of a surveyed model, without an objective for the least memory that its proposals give; without
    `gather_logits` a head's results stay cut. With `sequence_parallel` units hand on what is cut over positions, where they can.

    Raises UsageError for a size below one.
    """
    if not isinstance(tp, int) or tp < 1:
        raise UsageError(f"tp must be a whole number of at least 1, not {tp!r}")
    machine, workload = machine or hardware(DEFAULT_HARDWARE), workload or Workload()
    problems = dict(found.problems) if objective else _without_small_tables(found.problems)
    if not gather_logits:
        problems = _each(problems, lambda problem: replace(problem, keep=problem.is_head))
    if sequence_parallel and tp > 1:
        problems = _each(problems, lambda problem: replace(problem, sequence=tp))
    waits: Waits = {}
    weighers = {s: Weigher(p.graph, machine, workload, waits) for s, p in problems.items()}
    parameters = Parameters(model)
    tied = parameters.tied()
    select: Select = LeastMemory(weighers, tp)
    if objective is not None:
        select = LeastTime(model, found, weighers, tp, machine, objective)
    choices = choose_tied(found, problems, select, tp, tied, parameters.holders)
    units = tuple(_unit_plans(found, problems, choices, weighers))
    planned = _planned(units)
    return Plan(
        version=VERSION,
        model=type(model).__name__,
        fingerprint=parameters.fingerprint(),
        tp=tp,
        hardware=machine.name,
        tokens=workload.tokens,
        element_bytes=workload.element_bytes,
        units=units,
        outside=tuple(outside(parameters, found, units)),
        tied=tuple(tuple(sorted(names, key=lambda name: name not in planned)) for names in tied),
        sizes=found.sizes,
        objective=str(objective or (LEAST_MEMORY if found.objective == "memory" else "")),
    )


def _without_small_tables(problems: Mapping[int, UnitProblem]) -> dict[int, UnitProblem]:
    """Drop proposals whose rule asks for a share of the largest table and whose table is smaller."""
    rows: dict[str, int] = {}
    for problem in problems.values():
        for proposal in problem.proposals:
            rows[proposal.rule.name] = max(rows.get(proposal.rule.name, 0), _size(proposal))
    return _each(problems, lambda problem: _filtered(problem, rows))


def _each(problems: Mapping[int, UnitProblem], change: Callable[[UnitProblem], UnitProblem]) -> dict[int, UnitProblem]:
    """The problems changed; those that are one stay one."""
    changed = {id(problem): change(problem) for problem in problems.values()}
    return {shape: changed[id(problem)] for shape, problem in problems.items()}


def _size(proposal: Proposal) -> int:
    return max(axis.size for axis in proposal.axes)


def _filtered(problem: UnitProblem, largest: Mapping[str, int]) -> UnitProblem:
    small = [p for p in problem.proposals if _size(p) < p.rule.share * largest[p.rule.name]]
    return without(problem, small, "a small table, not worth a collective")


def _unit_plans(
    found: Survey,
    problems: Mapping[int, UnitProblem],
    choices: Mapping[int, Choice],
    weighers: Mapping[int, Weigher],
) -> Iterable[UnitPlan]:
    for shape, problem in problems.items():
        instances = tuple(unit.path for unit in found.units if unit.shape == shape and unit.path not in found.failures)
        if instances:
            yield unit_plan(instances, problem, choices[shape], weighers[shape])


def _planned(units: Iterable[UnitPlan]) -> set[str]:
    """The names of the parameters of units."""
    return {
        f"{path}.{p.name}" if path else p.name for unit in units for path in unit.instances for p in unit.parameters
    }


def outside(parameters: Parameters, found: Survey, units: tuple[UnitPlan, ...]) -> Iterable[OutsidePlan]:
    """Parameters of no unit plan, and why each is left whole; one that is in a unit under another name is what it is there."""
    planned, holders = _planned(units), parameters.holders
    known = {holders[name]: name for name in planned & holders.keys()}
    for name, parameter in parameters.named.items():
        if name not in planned:
            own = known.get(holders[name])
            reason = _why_outside(name, found) if own is None else f"it is {own}, whose module the model has twice"
            yield OutsidePlan(name, tuple(parameter.shape), reason)


def _why_outside(name: str, found: Survey) -> str:
    owners = [path for path in found.failures if name.startswith(path + ".") or not path]
    if owners:
        return found.failures[max(owners, key=len)]
    inside = any(name.startswith(unit.path + ".") for unit in found.units)
    return "its unit does not read it" if inside else "it belongs to no unit: there is no matrix beside it"
