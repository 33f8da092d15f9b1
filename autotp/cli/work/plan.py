"""The work of `autotp plan`: make a plan, and print it from the side that was asked for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from ...errors import UsageError
from ...outside.progress import working
from ...planner.plan import Plan
from ...report import (
    make_console,
    paragraphs,
    plan_estimate,
    plan_left_whole,
    plan_sizes,
    plan_summary,
    plan_tree,
    plan_units,
    why_data,
    why_text,
)
from ...session.arguments import Wishes
from ...session.study import Study


def print_plan(
    model: str,
    sizes: tuple[int, ...],
    wishes: Wishes,
    *,
    edited: Plan | None,
    side_by_side: bool,
    parameter: str | None,
    batch: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """Plan for these numbers of ranks, or take the edited plan, and print what was asked for."""
    with working(f"planning {model} for {' and '.join(map(str, sizes))} ranks"):
        study = Study(model, **wishes)
        plan = study.read(edited) if edited is not None else study.plan(sizes[0])
    if out is not None:
        save(plan, out)
    if parameter is not None:
        explain(study, plan, parameter, as_json)
    elif side_by_side:
        compare(study, sizes, batch, as_json)
    elif as_json:
        click.echo(plan.to_json(), nl=False)
    else:
        show(study, plan, batch)


def show(study: Study, plan: Plan, batch: int) -> None:
    """Print everything about one plan."""
    with working("estimating memory and time"):
        estimate = study.estimate(plan, batch)
    tables = (*plan_estimate(estimate), plan_tree(plan), *plan_units(plan), plan_left_whole(plan))
    make_console().print(paragraphs((plan_summary(plan), *tables)))


def explain(study: Study, plan: Plan, parameter: str, as_json: bool) -> None:
    """Print why one parameter is placed as it is."""
    found = study.why(plan, parameter)
    if as_json:
        click.echo(json.dumps(why_data(found), indent=2, ensure_ascii=False))
    else:
        make_console().print(why_text(found))


def compare(study: Study, sizes: tuple[int, ...], batch: int, as_json: bool) -> None:
    """Print several sizes beside each other."""
    with working("estimating memory and time"):
        pairs = [(plan, study.estimate(plan, batch)) for plan in map(study.plan, dict.fromkeys(sizes))]
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(estimate) for _, estimate in pairs], indent=2, ensure_ascii=False))
    else:
        make_console().print(plan_sizes(pairs))


def save(plan: Plan, path: Path) -> None:
    """Write a plan to a file. Raises UsageError if that is impossible."""
    try:
        plan.save(path)
    except OSError as error:
        raise UsageError(f"cannot write --out {path}: {error.strerror}") from error
