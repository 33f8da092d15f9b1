"""The work of `autotp diff`: graphs before and after, plans beside each other, transformers' own plan beside ours."""

from __future__ import annotations

from pathlib import Path

import click

from ... import api
from ...errors import UsageError
from ...outside.progress import working
from ...planner.plan import Plan
from ...report import make_console, paragraphs
from ...report.against import bytes_a_token
from ...report.diff import compare_plans, plans_text
from ...session.study import Study


def show_diff(
    source: str,
    sizes: tuple[int, ...],
    plan: Plan | None,
    rules: tuple[Path, ...],
    *,
    unit: str | None,
    files: tuple[tuple[str, Path | None], ...],
    as_json: bool,
    context: int,
    full: bool,
) -> None:
    """Write the difference to the files that are given; print it as JSON if asked to, or where there is no file."""
    with working(f"comparing {source} with its parallel form"):
        found = api.diff(source, sizes[0], compare=sizes[1:], plan=plan, rules=rules)
    found = found.only(unit) if unit is not None else found
    makers = {"--html": found.page, "--dot": found.dot, "--svg": found.svg}
    written = [write(path, flag, makers[flag]()) for flag, path in files if path is not None]
    if as_json:
        click.echo(found.json(), nl=False)
    elif not written:
        make_console().print(found.renderable(context, full))


def show_against(
    source: str, tp: int, against: str, given: Plan | None, rules: tuple[Path, ...], as_json: bool
) -> None:
    """Print what transformers does otherwise, or would where it has no plan."""
    with working(f"comparing {source} with {against}"):
        study = Study(source, rules=rules)
        plan = study.read(given) if given is not None else study.plan(tp)
        other, name = study.against(plan, against)
    difference = compare_plans(plan, other)
    if as_json:
        click.echo(difference.to_json(), nl=False)
        return
    if name == "layer by layer":
        click.echo(f"transformers has no plan for {source}: compared with its styles for the same layers", err=True)
    make_console().print(paragraphs((bytes_a_token(plan, other, name), plans_text(difference, ("autotp", name)))))


def show_plans(first: Plan, second: Plan, names: tuple[str, str], as_json: bool) -> None:
    """Print the difference between two plans."""
    difference = compare_plans(first, second)
    if as_json:
        click.echo(difference.to_json(), nl=False)
    else:
        make_console().print(plans_text(difference, names))


def write(path: Path, flag: str, text: str) -> Path:
    """Write a file, and say so. Raises UsageError if that is impossible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {flag} {path}: {error.strerror}") from error
    click.echo(f"wrote {path}, {len(text.encode()) / 1024:,.0f} KiB", err=True)
    return path
