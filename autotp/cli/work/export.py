"""The work of `autotp export`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ...outside.progress import working
from ...planner.plan import Plan
from ...session.study import Study


def print_export(
    model: str, tp: int | None, given: Plan | None, system: str, settings: dict[str, str], rules: tuple[Path, ...]
) -> None:
    """Print a plan as another system reads it."""
    with working(f"planning {model}"):
        study = Study(model, rules=rules, settings=settings)
        plan = given if given is not None else study.plan(tp or 0)
        data = study.export(plan, system)
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))
