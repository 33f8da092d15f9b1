"""`autotp diff`: what parallelisation does to every graph, and what differs between two plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from ..huggingface.names import check_named
from ..session.arguments import check_size, rule_folders
from .options import MODEL_HELP, Sizes, importing, json_option, read_plan, rules_option

CONTEXT = 1
MSG_AGAINST = "--against compares two ways to cut one model: give MODEL and --tp N, and only --plan or --json besides"
MSG_PLANS = "two plans are compared as they are: give PLAN_A and PLAN_B, and --json if you want JSON"


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
    if other is None:
        check_named(source)
    if against is not None:
        if other is not None or compare or unit or html or dot or svg or tp is None:
            raise UsageError(MSG_AGAINST)
        return _against(source, tp, against, plan_file, rules, as_json)
    if other is not None:
        if tp is not None or compare or plan_file or unit or html or dot or svg:
            raise UsageError(MSG_PLANS)
        return _plans(Path(source), other, as_json)
    sizes = ((tp,) if tp is not None else ()) + compare
    if not sizes:
        raise UsageError("give the number of ranks, as in --tp 4, or a second plan to compare the first one with")
    if context < 0:
        raise UsageError(f"--context must be at least 0, not {context}")
    for size in sizes:
        check_size(size)
    plan = read_plan(plan_file, "--plan") if plan_file is not None else None
    with importing():
        from .work.diff import show_diff
    show_diff(
        source,
        sizes,
        plan,
        rule_folders(rules),
        unit=unit,
        files=(("--html", html), ("--dot", dot), ("--svg", svg)),
        as_json=as_json,
        context=context,
        full=full,
    )


def _against(
    source: str, tp: int, against: str, plan_file: Path | None, rules: tuple[Path, ...], as_json: bool
) -> None:
    check_size(tp)
    given = read_plan(plan_file, "--plan") if plan_file is not None else None
    with importing():
        from .work.diff import show_against
    show_against(source, tp, against, given, rule_folders(rules), as_json)


def _plans(first: Path, second: Path, as_json: bool) -> None:
    plans = read_plan(first, "PLAN_A"), read_plan(second, "PLAN_B")
    with importing():
        from .work.diff import show_plans
    show_plans(*plans, plan_names(first, second), as_json)


def plan_names(first: Path, second: Path) -> tuple[str, str]:
    """What to call two files: by their names, unless those are equal."""
    return (first.name, second.name) if first.name != second.name else (str(first), str(second))
