"""The difference between two plans of one model: parameters placed differently, collectives, bytes."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...errors import PlanError
from ...planner.plan import ParameterPlan, Plan
from ..summary import kind_name
from ..text import add_row, byte_size, dims, duration, fold, make_table, number, paragraphs

REPLICATED = "replicated"
VERSION = 1


@dataclass(frozen=True)
class Placed:
    """How one plan places a parameter."""

    placement: str
    layouts: tuple[str, ...]
    local_shape: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class Moved:
    """A parameter that the plans place differently."""

    name: str
    shape: tuple[int, ...]
    first: Placed
    second: Placed


@dataclass(frozen=True)
class Traffic:
    """The collectives of one step by one kind: how many run, the bytes each rank sends, and the seconds they take."""

    count: int
    bytes: float
    seconds: float


@dataclass(frozen=True)
class TrafficDiff:
    """What both plans send of one kind, in one phase, on activations or on parameters."""

    kind: str
    phase: str
    of: str
    first: Traffic
    second: Traffic


@dataclass(frozen=True)
class PlanDiff:
    """Two plans beside each other. `elements` are the parameters of a rank, `whole` those of the model."""

    model: str
    tp: tuple[int, int]
    whole: int
    elements: tuple[int, int]
    moved: tuple[Moved, ...]
    traffic: tuple[TrafficDiff, ...]

    def total(self) -> tuple[Traffic, Traffic]:
        """All collectives of one step under either plan."""
        return _sum(t.first for t in self.traffic), _sum(t.second for t in self.traffic)

    def to_json(self) -> str:
        """The difference as JSON."""
        data = {"version": VERSION, **dataclasses.asdict(self), "total": [dataclasses.asdict(t) for t in self.total()]}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def compare_plans(first: Plan, second: Plan) -> PlanDiff:
    """What differs between two plans. Raises PlanError for plans of different models."""
    if first.fingerprint != second.fingerprint:
        raise PlanError(
            f"the plans are for different models, {first.model} and {second.model}, whose parameters differ in names or "
            "shapes; compare two plans of one model"
        )
    one, two = _placements(first), _placements(second)
    shapes = _shapes(first)
    moved = [Moved(name, shapes[name], one[name], two[name]) for name in one if _held(one[name]) != _held(two[name])]
    return PlanDiff(
        model=first.model,
        tp=(first.tp, second.tp),
        whole=first.elements()[0],
        elements=(first.elements()[1], second.elements()[1]),
        moved=tuple(moved),
        traffic=tuple(_traffic(first, second)),
    )


def _held(placed: Placed) -> tuple[str, tuple[str, ...]]:
    return placed.placement, placed.layouts if placed.placement != REPLICATED else ()


def _shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    inside = {name: p.shape for name, p in _parameters(plan)}
    return {**inside, **{p.name: p.shape for p in plan.outside}}


def _parameters(plan: Plan) -> Iterator[tuple[str, ParameterPlan]]:
    for unit in plan.units:
        for path in unit.instances:
            yield from ((f"{path}.{p.name}" if path else p.name, p) for p in unit.parameters)


def _placements(plan: Plan) -> dict[str, Placed]:
    """How every parameter of the model is placed, those of no unit too."""
    found = {
        name: Placed(p.placement, p.layouts, p.local_shape, f"rule {p.rule}" if p.rule else p.reason)
        for name, p in _parameters(plan)
    }
    outside = {p.name: Placed(REPLICATED, tuple(map(str, p.shape)), p.shape, p.reason) for p in plan.outside}
    return {**found, **outside}


def _traffic(first: Plan, second: Plan) -> Iterator[TrafficDiff]:
    one, two = _by_kind(first), _by_kind(second)
    for key in dict.fromkeys([*one, *two]):
        none = Traffic(0, 0.0, 0.0)
        yield TrafficDiff(*key, one.get(key, none), two.get(key, none))


def _by_kind(plan: Plan) -> dict[tuple[str, str, str], Traffic]:
    found: dict[tuple[str, str, str], Traffic] = {}
    for c in plan.step():
        before = found.get((c.kind, c.phase, c.of), Traffic(0, 0.0, 0.0))
        found[c.kind, c.phase, c.of] = Traffic(
            before.count + 1, before.bytes + c.wire_bytes, before.seconds + c.seconds
        )
    return found


def _sum(traffic: Iterable[Traffic]) -> Traffic:
    several = list(traffic)
    return Traffic(sum(t.count for t in several), sum(t.bytes for t in several), sum(t.seconds for t in several))


def plans_text(diff: PlanDiff, names: tuple[str, str]) -> Group:
    """Two plans for a terminal: what a rank holds and sends, and every parameter placed differently."""
    return paragraphs((_sizes(diff, names), _collectives(diff, names), _moved(diff, names)))


def _sizes(diff: PlanDiff, names: tuple[str, str]) -> Table:
    table = make_table((diff.model, *(f">{name}" for name in names)))
    add_row(table, ("ranks", *diff.tp))
    share = (f"{number(e)} ({e / diff.whole:.1%})" if diff.whole else number(e) for e in diff.elements)
    add_row(table, ("parameters on a rank", *share))
    return table


def _collectives(diff: PlanDiff, names: tuple[str, str]) -> Table:
    columns = (f">{words}" for name in names for words in (name, "wire bytes", "time"))
    table = make_table(("collectives of one step", *columns))
    for t in diff.traffic:
        style = "" if (t.first.count, t.first.bytes) == (t.second.count, t.second.bytes) else "yellow"
        words = f"{kind_name(t.kind)} {t.phase} of {'an' if t.of == 'activation' else 'a'} {t.of}"
        add_row(table, (words, *_cells(t.first), *_cells(t.second)), style=style)
    table.add_section()
    first, second = diff.total()
    add_row(table, ("all", *_cells(first), *_cells(second)), style="bold")
    return table


def _cells(traffic: Traffic) -> tuple[object, str, str]:
    return traffic.count, byte_size(traffic.bytes), duration(traffic.seconds)


def _moved(diff: PlanDiff, names: tuple[str, str]) -> Table | Text:
    if not diff.moved:
        return Text("every parameter is placed alike", "bold green")
    table = make_table(("placed differently", "whole", names[0], "on a rank", names[1], "on a rank"))
    for name, m in _folded(diff.moved):
        cells = (m.first.placement, dims(m.first.local_shape), m.second.placement, dims(m.second.local_shape))
        add_row(table, (name, dims(m.shape), *cells))
    counts = Counter((m.first.placement, m.second.placement) for m in diff.moved)
    words = ", ".join(f"{count} {one} » {two}" for (one, two), count in counts.items())
    table.caption, table.caption_justify = Text(f"{len(diff.moved)} parameters: {words}"), "left"
    return table


def _folded(moved: tuple[Moved, ...]) -> list[tuple[str, Moved]]:
    """Parameters that differ only in a number of their name, once each, under the folded name."""
    groups: dict[object, list[Moved]] = {}
    for m in moved:
        name = tuple(part for part in m.name.split(".") if not part.isdecimal())
        groups.setdefault((name, m.shape, _held(m.first), _held(m.second)), []).append(m)
    return [(name, same[0]) for same in groups.values() for name in fold(m.name for m in same)]
