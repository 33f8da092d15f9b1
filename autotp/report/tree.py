"""A plan as a tree of modules: repeated layers once, and what a rank has of every parameter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.table import Table

from ..planner.plan import Plan, UnitPlan
from .text import add_row, dims, fold, make_table
from .units import folded

_PARTS = re.compile(r"\.(?![^{]*\})")  # a dot that is not inside braces, as in layers.{0..31}
COLUMNS = ("module", "placement", "whole", "on a rank", "layouts", "rule")


@dataclass
class _Branch:
    """A module: what is inside by name, or the cells of a parameter."""

    inside: dict[str, _Branch] = field(default_factory=dict)
    cells: tuple[str, ...] = ()


def plan_tree(plan: Plan) -> Table:
    """Every parameter under the modules that hold it; modules that are equal but for their number share a line."""
    root = _Branch()
    for path, cells in _leaves(plan):
        branch = root
        for part in _PARTS.split(path):
            branch = branch.inside.setdefault(part, _Branch())
        branch.cells = cells
    table = make_table(COLUMNS)
    table.columns[0].no_wrap = True
    add_row(table, (plan.model,), style="bold")
    for line in _lines(root.inside, ""):
        add_row(table, line)
    return table


def _leaves(plan: Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The folded path of every parameter, in the order of the model, and its cells."""
    for unit in plan.units:
        for place in _places(unit):
            for name, p in folded(unit.parameters):
                whole = p.placement == "replicated"
                local, layouts = ("=", "") if whole else (dims(p.local_shape), ", ".join(p.layouts))
                yield f"{place}.{name}".lstrip("."), (p.placement, dims(p.shape), local, layouts, p.rule)
    shapes: dict[tuple[int, ...], list[str]] = {}
    for o in plan.outside:
        shapes.setdefault(o.shape, []).append(o.name)
    for shape, names in shapes.items():
        yield from ((name, ("replicated", dims(shape), "=", "", "")) for name in fold(names))


def _places(unit: UnitPlan) -> list[str]:
    return fold(unit.instances)


def _lines(inside: Mapping[str, _Branch], indent: str) -> Iterator[tuple[str, ...]]:
    """A line for each module and parameter; a module with nothing but one thing in it is on one line with it."""
    last = len(inside) - 1
    for number, (name, branch) in enumerate(inside.items()):
        while not branch.cells and len(branch.inside) == 1:
            ((inner, branch),) = branch.inside.items()
            name = f"{name}.{inner}"
        yield (f"{indent}{'└─ ' if number == last else '├─ '}{name}", *branch.cells)
        yield from _lines(branch.inside, indent + ("   " if number == last else "│  "))
