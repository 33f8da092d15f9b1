"""A plan as a tree of modules: repeated layers once, and what a rank has of every parameter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rich.table import Table

from ..planner.plan import ParameterPlan, Plan, UnitPlan
from .text import add_row, dims, fold, make_table
from .units import folded

_PARTS = re.compile(r"\.(?![^{]*\})")  # a dot that is not inside braces, as in layers.{0..31}
# The columns beside the tree: the title, and the text for a parameter.
COLUMNS: Mapping[str, Callable[[ParameterPlan], str]] = {
    "placement": lambda p: p.placement,
    "whole": lambda p: dims(p.shape),
    "on a rank": lambda p: dims(p.local_shape) if _is_cut(p) else "=",
    "layouts": lambda p: ", ".join(p.layouts) if _is_cut(p) else "",
    "rule": lambda p: p.rule,
}


def _is_cut(parameter: ParameterPlan) -> bool:
    return parameter.placement != "replicated"


@dataclass
class _Branch:
    """A module: what is inside by name, or the cells of a parameter."""

    inside: dict[str, _Branch] = field(default_factory=dict)
    cells: tuple[str, ...] = ()


def plan_tree(plan: Plan) -> Table:
    """Every parameter under the modules that hold it; modules that are equal but for their number share a line."""
    root = _Branch()
    for path, parameter in _leaves(plan):
        branch = root
        for part in _PARTS.split(path):
            branch = branch.inside.setdefault(part, _Branch())
        branch.cells = tuple(text(parameter) for text in COLUMNS.values())
    table = make_table(("module", *COLUMNS))
    table.columns[0].no_wrap = True
    add_row(table, (plan.model,), style="bold")
    for line in _lines(root.inside, ""):
        add_row(table, line)
    return table


def _leaves(plan: Plan) -> Iterator[tuple[str, ParameterPlan]]:
    """Every parameter with its folded path, in the order of the model; what belongs to no unit is replicated."""
    for unit in plan.units:
        for place in _places(unit):
            for name, p in folded(unit.parameters):
                yield f"{place}.{name}".lstrip("."), p
    shapes: dict[tuple[int, ...], list[str]] = {}
    again = {name for names in plan.tied for name in names[1:]}
    for o in [o for o in plan.outside if o.name not in again]:
        shapes.setdefault(o.shape, []).append(o.name)
    for shape, names in shapes.items():
        whole = ParameterPlan("", shape, "replicated", tuple(map(str, shape)), shape, rule="", reason="")
        yield from ((name, whole) for name in fold(names))


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
