"""A difference for a terminal: one line a step, what belongs together and what is unchanged folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...planner.plan import UnitPlan
from ..summary import kind_name, plan_summary
from ..text import byte_size, fold, make_table, paragraphs, place_of
from .data import CutAxis, Diff, Step, UnitDiff

CONTEXT = 1
MARKS = {"same": " ", "shape": "~", "replaced": "»", "inserted": "+", "removed": "-"}
STYLES = {"same": "dim", "shape": "yellow", "replaced": "cyan", "inserted": "green", "removed": "red"}
LEGEND = (
    ("shape", "smaller on a rank"),
    ("replaced", "another layer"),
    ("inserted", "inserted"),
    ("removed", "removed"),
)
MOVES = "bold magenta"


def diff_text(diff: Diff, units: Sequence[UnitDiff], context: int = CONTEXT, full: bool = False) -> Group:
    """The summary of a plan and the steps of some units. `context` is how many unchanged steps are shown around changed
    ones; with `full` nothing is folded."""
    plans = {plan.instances: plan for plan in diff.plan.units}
    parts = [part for unit in units for part in unit_text(unit, plans[unit.instances], context, full)]
    nothing = [] if diff.plan.units else [Text("no unit of the model could be traced; autotp plan says why", "dim")]
    return paragraphs((plan_summary(diff.plan), _legend(), *nothing, *parts))


def _legend() -> Text:
    marks = [Text(f"{MARKS[change]} {words}", STYLES[change]) for change, words in LEGEND]
    return Text("   ").join([*marks, Text("+ moves bytes", MOVES)])


def unit_text(unit: UnitDiff, plan: UnitPlan, context: int, full: bool) -> Iterator[RenderableType]:
    """A unit's axes and layers, and its steps."""
    equal = f", {len(unit.instances)} equal units" if len(unit.instances) > 1 else ""
    title = f"{place_of(unit.instances)} · {unit.module}{equal}"
    if unit.unchanged:
        yield Group(Text(title, "bold"), Text(unit.unchanged, "dim"))
        return
    yield Group(Text(title, "bold"), *map(Text, _head(unit, plan)))
    yield _steps(unit, context, full)


def _head(unit: UnitDiff, plan: UnitPlan) -> Iterator[str]:
    """What changed, in a few lines."""
    for axis in unit.axes:
        yield _axis(axis)
    for (before, after), same in groupby(sorted(unit.layers, key=_classes), key=_classes):
        yield f"{before} » {after}: {', '.join(fold(layer.path for layer in same)) or 'the unit itself'}"
    sent = sum(c.wire_bytes for c in plan.collectives)
    kinds = [f"{kind_name(c.kind)} {c.phase}" for c in plan.collectives]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    yield f"collectives: {counts or 'none'}" + (f"; {byte_size(sent)} on the wire" if sent else "")


def _classes(layer: object) -> tuple[str, str]:
    return layer.before, layer.after  # type: ignore[attr-defined]


def _axis(axis: CutAxis) -> str:
    padded = f" padded to {axis.padded}" if axis.padded != axis.size else ""
    return (
        f"{axis.name}: an axis of {axis.size}{padded}, cut in {axis.parts} by rule {axis.rule}: {axis.local} on a rank"
    )


def _steps(unit: UnitDiff, context: int, full: bool) -> Table:
    table = make_table(("", "step", "operator", "whole", "on a rank", "moves"))
    for line in lines(unit.steps, context, full):
        if isinstance(line, Folded):
            table.add_row("", Text(f"· {line.count} {line.words}"), Text(line.operators), style="dim")
        else:
            style = MOVES if line.transfer and line.transfer.moves else STYLES[line.change]
            table.add_row(*map(Text, _cells(line)), style=style)
    return table


def _cells(step: Step) -> tuple[str, ...]:
    before, after = step.before, step.after
    operator = step.either.operator
    if before and after and before.operator != after.operator:
        operator = f"{before.operator} » {after.operator}"
    local = "" if after is None else "=" if before and after.shapes == before.shapes else shapes(after.shapes)
    local += " partial sum" if step.state == "partial" else ""
    return MARKS[step.change], title_of(step), operator, shapes(before.shapes) if before else "", local, moves(step)


def title_of(step: Step) -> str:
    """What to call a step: a layer by its path, everything else by its name."""
    return step.either.name


def shapes(several: Sequence[Sequence[str]]) -> str:
    """The shapes of a value; of a list those that differ, with how many there are."""
    found = [" × ".join(shape) or "scalar" for shape in several]
    kinds = list(dict.fromkeys(found))
    return kinds[0] if len(found) == 1 else f"{len(found)} of {' or '.join(kinds)}" if found else ""


def moves(step: Step) -> str:
    """The bytes a step moves, by phase, and the steps that the same call serves."""
    if step.transfer is None:
        return ""
    phases = ("forward", step.transfer.forward_bytes), ("backward", step.transfer.backward_bytes)
    with_others = [f"with {', '.join(step.transfer.together)}"] if step.transfer.together else []
    return ", ".join([*(f"{byte_size(size)} {phase}" for phase, size in phases if size), *with_others])


@dataclass(frozen=True)
class Folded:
    """Steps that are not shown: how many, what they have in common, and some of their operators."""

    count: int
    words: str
    operators: str


def lines(steps: Sequence[Step], context: int, full: bool = False) -> Iterator[Step | Folded]:
    """The steps to show, and runs of those that are not: unchanged ones away from changed ones, and slices of one block."""
    shown = [full or _matters(step) or _near(steps, i, context) for i, step in enumerate(steps)]
    for (visible, words), run in groupby(
        zip(steps, shown, strict=True), key=lambda pair: (pair[1], _fold_words(*pair))
    ):
        some = [step for step, _ in run]
        if visible or len(some) == 1:
            yield from some
        else:
            yield Folded(len(some), words, _operators(some))


def _matters(step: Step) -> bool:
    return step.change not in ("same", "shape") or (step.role != "operator" and step.change != "same")


def _near(steps: Sequence[Step], place: int, context: int) -> bool:
    """Returns if an unchanged step is beside one that is shown for its own sake."""
    around = steps[max(0, place - context) : place + context + 1] if context else ()
    return steps[place].change == "same" and any(map(_matters, around))


def _fold_words(step: Step, shown: bool) -> str:
    if shown:
        return ""
    if step.change == "same":
        return "unchanged"
    return f"on slices of {' and '.join(step.axes)}" if step.axes else "on a rank's positions"


def _operators(steps: Sequence[Step], most: int = 3) -> str:
    names = list(dict.fromkeys(step.either.operator for step in steps))
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])
