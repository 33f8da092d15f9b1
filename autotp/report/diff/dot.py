"""A difference in Graphviz's language, and drawn by Graphviz where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from ...errors import UsageError
from ..text import place_of
from .data import Diff, Step, UnitDiff, Value
from .text import moves, shapes

FILLS = {
    "column": "#bfdbfe",
    "row": "#fde68a",
    "vocabulary": "#bfdbfe",
    "expert": "#bfdbfe",
    "slice": "#e0f2fe",
    "partial": "#fef3c7",
    "whole": "#ffffff",
    "collective": "#be185d",
    "removed": "#fecaca",
}
HEAD = """digraph autotp {
  rankdir=TB; compound=true; newrank=true; nodesep=0.25; ranksep=0.3;
  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=10, color="#64748b", fillcolor="#ffffff"];
  edge [color="#94a3b8", arrowsize=0.6];"""


def diff_dot(diffs: Sequence[Diff]) -> str:
    """One graph with two clusters for every unit that changed: before, and on a rank."""
    bodies = [
        line
        for i, diff in enumerate(diffs)
        for j, unit in enumerate(diff.units)
        for line in _unit(diff, unit, f"{i}_{j}")
    ]
    return "\n".join([HEAD, *bodies, "}", ""])


def _unit(diff: Diff, unit: UnitDiff, key: str) -> Iterator[str]:
    if not unit.steps:
        return
    for side, words in (("before", "before"), ("after", f"on a rank of {diff.plan.tp}")):
        yield f"  subgraph cluster_{side}_{key} {{"
        yield f'    label={_quoted(f"{place_of(unit.instances)}: {words}")}; fontname=Helvetica; color="#cbd5e1";'
        for step in unit.steps:
            value = step.before if side == "before" else step.after
            if value is not None:
                yield from _node(step, value, f"{side}_{key}")
        yield "  }"


def _node(step: Step, value: Value, key: str) -> Iterator[str]:
    lines = [value.operator, *([] if value.name == value.operator else [value.name]), shapes(value.shapes), moves(step)]
    label = _quoted("\n".join(line for line in lines if line))
    after = key.startswith("after")
    fill = FILLS["whole"]
    if after:
        fill = FILLS.get(step.role, FILLS[step.state])
    elif step.change == "removed":
        fill = FILLS["removed"]
    white = ', fontcolor="#ffffff"' if step.role == "collective" else ""
    yield f'    {_quoted(f"{key}:{step.name}")} [label={label}, fillcolor="{fill}"{white}];'
    for source in value.inputs:
        yield f"    {_quoted(f'{key}:{source}')} -> {_quoted(f'{key}:{step.name}')};"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def render_svg(dot: str) -> str:
    """Let Graphviz draw. Raises UsageError if its program `dot` is not installed or fails."""
    program = shutil.which("dot")
    if program is None:
        raise UsageError(
            "drawing an SVG needs Graphviz's program dot, which is not on the PATH; "
            "install it (apt-get install graphviz), or write --dot FILE, or --html FILE, which needs nothing"
        )
    done = subprocess.run([program, "-Tsvg"], input=dot, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"Graphviz could not draw the graph: {done.stderr.strip()[:200]}")
    return done.stdout
