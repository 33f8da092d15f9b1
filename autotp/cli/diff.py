"""`autotp diff`: what parallelisation does to every graph, and what differs between two plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .. import api
from ..errors import UsageError
from ..report import make_console, paragraphs
from ..report.against import bytes_a_token
from ..report.diff import GraphDiff, compare_plans, plans_text
from ..report.diff.text import CONTEXT
from ..session.study import Study
from .options import MODEL_HELP, Sizes, json_option, read_plan, rules_option, working


def _file(flag: str, words: str) -> Callable[[Any], Any]:
    return click.option(flag, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=words)


@click.command("diff", epilog=MODEL_HELP)
@click.argument("source", metavar="MODEL|PLAN_A")
@click.argument("other", metavar="[PLAN_B]", required=False, type=click.Path(path_type=Path))
@click.option("--tp", type=int, metavar="N", help="Number of tensor-parallel ranks.")
@click.option("--compare", type=Sizes(), metavar="N,N", default=(), help="Further numbers of ranks, shown beside it.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="The plan to show.")
@click.option("--against", metavar="tp_plan|FILE", help="Compare with transformers' own plan, or one in a file.")
@click.option("--unit", metavar="PATH", help="Only the unit at a path, or those that match a pattern.")
@click.option("--context", default=CONTEXT, show_default=True, metavar="K", help="Unchanged steps around changed ones.")
@click.option("--full", is_flag=True, help="Fold nothing: one line for every node.")
@rules_option
@json_option
@_file("--html", "Write one self-contained page: both graphs side by side.")
@_file("--dot", "Write the graphs in Graphviz's language.")
@_file("--svg", "Let Graphviz draw them.")
def diff_command(
    source: str,
    other: Path | None,
    tp: int | None,
    compare: tuple[int, ...],
    plan_file: Path | None,
    against: str | None,
    unit: str | None,
    context: int,
    full: bool,
    rules: tuple[Path, ...],
    as_json: bool,
    html: Path | None,
    dot: Path | None,
    svg: Path | None,
) -> None:
    """Show what tensor parallelism over N ranks does to MODEL's graphs, or what differs between two plans.

    \b
    Examples:
      autotp diff llama --tp 4
      autotp diff llama --tp 4 --unit 'model.layers.*' --full | less
      autotp diff ./checkpoint --tp 8 --compare 2,4 --html diff.html
      autotp diff gpt2 --tp 2 --plan edited.json --svg diff.svg
      autotp diff gpt2 --tp 2 --json | jq '.diffs[].units[].axes'
      autotp diff phi3 --tp 4 --against tp_plan
      autotp diff plan_a.json plan_b.json
    """
    if against is not None:
        if other is not None or compare or unit or html or dot or svg or tp is None:
            raise UsageError(
                "--against compares two ways to cut one model: give MODEL and --tp N, and only --plan or --json besides"
            )
        show_against(source, tp, against, plan_file, rules, as_json)
        return
    if other is not None:
        if tp is not None or compare or plan_file or unit or html or dot or svg:
            raise UsageError("two plans are compared as they are: give PLAN_A and PLAN_B, and --json if you want JSON")
        show_plans(Path(source), other, as_json)
        return
    sizes = ((tp,) if tp is not None else ()) + compare
    if not sizes:
        raise UsageError("give the number of ranks, as in --tp 4, or a second plan to compare the first one with")
    if context < 0:
        raise UsageError(f"--context must be at least 0, not {context}")
    plan = read_plan(plan_file, "--plan") if plan_file is not None else None
    with working(f"comparing {source} with its parallel form"):
        found = api.diff(source, sizes[0], compare=sizes[1:], plan=plan, rules=rules)
    found = found.only(unit) if unit is not None else found
    for path, flag, make in ((html, "--html", found.page), (dot, "--dot", found.dot), (svg, "--svg", found.svg)):
        if path is not None:
            write(path, flag, make())
    if as_json:
        click.echo(found.json(), nl=False)
    elif not (html or dot or svg):
        show(found, context, full)


def show_against(
    source: str, tp: int, against: str, plan_file: Path | None, rules: tuple[Path, ...], as_json: bool
) -> None:
    """Print what transformers does otherwise, or would where it has no plan."""
    with working(f"comparing {source} with {against}"):
        study = Study(source, rules=rules)
        plan = study.read(read_plan(plan_file, "--plan")) if plan_file is not None else study.plan(tp)
        other, name = study.against(plan, against)
    difference = compare_plans(plan, other)
    if as_json:
        click.echo(difference.to_json(), nl=False)
        return
    if name == "layer by layer":
        click.echo(f"transformers has no plan for {source}: compared with its styles for the same layers", err=True)
    make_console().print(paragraphs((bytes_a_token(plan, other, name), plans_text(difference, ("autotp", name)))))


def show(found: GraphDiff, context: int, full: bool) -> None:
    """Print the difference."""
    make_console().print(found.renderable(context, full))


def show_plans(first: Path, second: Path, as_json: bool) -> None:
    """Print the difference between two plans."""
    difference = compare_plans(read_plan(first, "PLAN_A"), read_plan(second, "PLAN_B"))
    if as_json:
        click.echo(difference.to_json(), nl=False)
        return
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    make_console().print(plans_text(difference, names))


def write(path: Path, flag: str, text: str) -> None:
    """Write a file, and say so. Raises UsageError if that is impossible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {flag} {path}: {error.strerror}") from error
    click.echo(f"wrote {path}, {len(text.encode()) / 1024:,.0f} KiB", err=True)
