"""Which blocks hand on values that are cut over positions: as many as it takes for a training step to fit a rank.

To cut them sends the same sums, scattered and gathered in place of reduced, and gathers some again in the backward. So it takes
longer, and a rank keeps fewer activations. What a block takes and keeps does not depend on the others; where one that is cut
follows one that is not, values are cut, and joined again behind the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .advise import ROOM
from .cost import Hardware, Workload
from .estimate import GIB, Estimate, Meter, estimate
from .formula import sizes
from .path import Step, cheapest
from .plan import Plan, UnitPlan
from .survey import Survey
from .work import Work
from .works import works_of


def best_positions(
    whole: Plan,
    cut: Plan,
    found: Survey,
    machine: Hardware,
    workload: Workload,
    rules: tuple[Path, ...],
    bounded: Callable[[Plan], Plan],
) -> Plan:
    """Of plans made of the units of two plans, which differ in whether positions are cut, the fastest whose training step fits a
    rank, with a sentence on that; if none does, the one of the least memory. `bounded` gives a plan what is sent where positions
    begin and end to be cut."""
    if not any(unit.sequence for unit in cut.units):
        return replace(whole, positions="positions stay whole: no unit hands on what can be cut over them")
    room, made = ROOM * machine.memory_gib * GIB, dict[Plan, Estimate]()
    works: dict[UnitPlan, Work] = {}

    def estimated(plan: Plan) -> Estimate:
        known, unknown = works_of(plan, found, machine, workload, rules)
        works.update(known)
        return estimate(plan, known, machine, 1, workload.tokens, unknown)

    for plan in (whole, cut):
        made[plan] = estimated(plan)
    more = room - made[whole].memory.training
    chosen = _chosen(whole, cut, works, machine, workload, found, more)
    if chosen is not None:
        mixed = bounded(_mixed(whole, cut, chosen))
        made[mixed] = estimated(mixed)
    fitting = [plan for plan in made if made[plan].memory.training <= room]
    best = (
        min(fitting, key=lambda plan: made[plan].step.total)
        if fitting
        else min(made, key=lambda plan: made[plan].memory.training)
    )
    return replace(best, positions=_sentence(best, made, (whole, cut), room))


def _chosen(
    whole: Plan,
    cut: Plan,
    works: Mapping[UnitPlan, Work],
    machine: Hardware,
    workload: Workload,
    found: Survey,
    more: float,
) -> frozenset[str] | None:
    """The units that are to be cut over positions, by their paths, so that a rank keeps at most so many bytes `more` than if none
    is. None where all or none are, or no choice of units fits."""
    values = sizes(1, workload.tokens)
    meters = [Meter(plan, works, machine) for plan in (whole, cut)]
    pairs = {path: pair for pair in zip(whole.units, cut.units, strict=True) for path in pair[0].instances}
    steps = []
    for path in [unit.path for unit in found.units if unit.path in pairs]:
        seconds, kept = zip(
            *(_needs(meter, unit, values) for meter, unit in zip(meters, pairs[path], strict=True)), strict=True
        )
        can = pairs[path][1].sequence and _are_laid_out_alike(*pairs[path])
        steps.append(Step(path, seconds[1] - seconds[0], kept[1] - kept[0], can))
    runs = sum(step.can and not (i and steps[i - 1].can) for i, step in enumerate(steps))
    around = sum(meters[1].time_around(phase, values) for phase in ("forward", "backward"))
    taken = cheapest(steps, around / max(runs, 1), more)
    possible = frozenset(path for path, (_, unit) in pairs.items() if unit.sequence)
    return taken if taken and taken != possible else None


def _needs(meter: Meter, unit: UnitPlan, values: dict[str, float]) -> tuple[float, float]:
    """Seconds of a training step of one instance of a unit, and bytes that it keeps for its backward."""
    times = (meter.time_of(unit, phase, values).total for phase in ("forward", "backward"))
    return sum(times), meter.saved_by(unit, values)


def _are_laid_out_alike(one: UnitPlan, other: UnitPlan) -> bool:
    """Returns if all parameters are held alike, as those that are tied to them have to be."""
    return [p.layouts for p in one.parameters] == [p.layouts for p in other.parameters]


def _mixed(whole: Plan, cut: Plan, chosen: frozenset[str]) -> Plan:
    """The plan whose chosen units are cut over positions, and no others."""
    units = []
    for one, other in zip(whole.units, cut.units, strict=True):
        for unit, is_cut in ((one, False), (other, True)):
            instances = tuple(path for path in unit.instances if (path in chosen) is is_cut)
            if instances:
                units.append(replace(unit, instances=instances))
    return replace(whole, units=tuple(units))


def _sentence(best: Plan, made: Mapping[Plan, Estimate], ends: Sequence[Plan], room: float) -> str:
    needs, others = made[best], [plan for plan in ends if plan is not best]
    words = {ends[0]: "whole", ends[1]: "cut"}
    blocks = [path for unit in best.units if unit.sequence for path in unit.instances]
    possible = [path for unit in ends[1].units if unit.sequence for path in unit.instances]
    own = words.get(best, f"cut in {len(blocks)} of {len(possible)} units")
    other = "; ".join(
        f"with {words[plan]} ones {made[plan].memory.training / GIB:.4g} GiB, {made[plan].step.total * 1e3:.4g} ms"
        for plan in others
    )
    return (
        f"positions are {own}: a training step of {needs.tokens:,} tokens takes {needs.memory.training / GIB:.4g}"
        f" of {room / GIB:.4g} GiB, {needs.step.total * 1e3:.4g} ms; {other}"
    )
