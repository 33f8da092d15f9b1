"""One HTML page of a difference: data, styles, scripts and libraries in a single file that needs no network."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from ..text import place_of
from .data import Diff, UnitDiff

ASSETS = files("autotp.report") / "assets"
SCRIPTS = ("model.js", "layout.js", "draw.js", "panel.js", "sidebar.js", "main.js")
LIBRARIES = ("d3", "dagre")


def make_page(diffs: Sequence[Diff]) -> str:
    """The page for one or several tensor-parallel sizes of one model; libraries come with their licences."""
    parts = {
        "TITLE": html.escape(f"{diffs[0].plan.model} · autotp diff"),
        "STYLE": _asset("page.css"),
        "SCRIPT": "\n".join(map(_asset, SCRIPTS)),
        "VENDOR": "\n".join(_asset(f"vendor/{name}.min.js") for name in LIBRARIES),
        "LICENCES": "\n".join(f"{name}\n{_asset(f'vendor/{name}.LICENSE')}" for name in LIBRARIES),
        "DATA": _embedded([_data(diff) for diff in diffs]),
    }
    head, *rest = _asset("page.html").split("@")
    # The template is cut at its marks once, so that an @ in what is put in stays one.
    return head + "".join(parts.get(piece, piece) if i % 2 == 0 else piece for i, piece in enumerate(rest))


def _asset(name: str) -> str:
    return ASSETS.joinpath(*name.split("/")).read_text(encoding="utf-8")


def _data(diff: Diff) -> dict[str, Any]:
    """What the page's scripts read: the difference, with the parts of the plan beside the units they are about."""
    plan = dataclasses.asdict(diff.plan)
    head = {name: plan[name] for name in ("model", "tp", "hardware", "tokens", "element_bytes", "outside")}
    sums = [{name: unit[name] for name in ("instances", "collectives")} for unit in plan["units"]]
    units = [_unit(diff, unit) for unit in diff.units]
    return {"plan": {**head, "units": sums}, "elements": diff.plan.elements(), "units": units}


def _unit(diff: Diff, unit: UnitDiff) -> dict[str, Any]:
    plan = next(plan for plan in diff.plan.units if plan.instances == unit.instances)
    return {
        **dataclasses.asdict(unit),
        "title": place_of(unit.instances),
        "not_cut": plan.not_cut,
        "parameters": [dataclasses.asdict(parameter) for parameter in plan.parameters],
        "collectives": [dataclasses.asdict(collective) for collective in plan.collectives],
    }


def _embedded(data: object) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
