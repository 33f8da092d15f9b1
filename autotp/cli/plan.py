"""`autotp plan`: what would be cut how, what it saves, what it costs, and why."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from ..errors import UsageError
from ..planner.plan import Plan
from ..planner.settings import parse_setting
from ..report import (
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
from ..session.study import Study
from .options import (
    MODEL_HELP,
    Sizes,
    batch_option,
    hardware_option,
    json_option,
    model_argument,
    read_plan,
    rules_option,
    sequence_option,
    tokens_option,
    working,
)


@click.command("plan", epilog=MODEL_HELP)
@model_argument
@click.option("--tp", type=int, metavar="N", help="Number of tensor-parallel ranks.")
@click.option("--compare", type=Sizes(), metavar="N,N", default=(), help="Only these numbers of ranks, side by side.")
@click.option("--why", "parameter", metavar="PARAMETER", help="Only one parameter: its term, rule and alternatives.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATTERN=replicate|RULE",
    help="Leave a part whole, or let one chain rule alone cut it; may be repeated.",
)
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="Show this plan, edited or not."
)
@sequence_option
@hardware_option
@tokens_option
@batch_option
@rules_option
@json_option
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Also write the plan to a file, as JSON.")
def plan_command(
    model: str,
    tp: int | None,
    compare: tuple[int, ...],
    parameter: str | None,
    settings: tuple[str, ...],
    plan_file: Path | None,
    sequence_parallel: bool,
    hardware: str,
    tokens: int,
    batch: int,
    rules: tuple[Path, ...],
    as_json: bool,
    out: Path | None,
) -> None:
    """Plan tensor parallelism for MODEL. Needs no weights, no GPU and no other process.

    \b
    Examples:
      autotp plan llama --tp 8
      autotp plan llama --compare 2,4,8 --tokens 16384 --batch 4
      autotp plan llama --tp 8 --sequence-parallel
      autotp plan ./checkpoint --tp 4 --hardware a100-nvlink-8
      autotp plan llama --tp 4 --why model.layers.0.self_attn.k_proj.weight
      autotp plan gpt2 --tp 2 --set 'transformer.h.*.mlp=replicate' --out plan.json
      autotp plan gpt2 --plan plan.json
      autotp plan gpt2 --tp 2 --json | jq '.units[].instances'
    """
    check(tp, compare, parameter, plan_file, tokens, out)
    edited = read_plan(plan_file, "--plan") if plan_file is not None else None
    sizes = compare or ((tp if tp is not None else edited.tp if edited else 0),)
    with working(f"planning {model} for {' and '.join(map(str, sizes))} ranks"):
        wanted = dict(map(parse_setting, settings))
        study = Study(
            model,
            hardware=hardware,
            tokens=tokens,
            rules=rules,
            settings=wanted,
            sequence_parallel=sequence_parallel,
        )
        plan = study.read(edited) if edited is not None else study.plan(sizes[0])
    if out is not None:
        save(plan, out)
    if parameter is not None:
        explain(study, plan, parameter, as_json)
    elif compare:
        side_by_side(study, compare, batch, as_json)
    elif as_json:
        click.echo(plan.to_json(), nl=False)
    else:
        show(study, plan, batch)


def check(
    tp: int | None,
    compare: tuple[int, ...],
    parameter: str | None,
    plan_file: Path | None,
    tokens: int,
    out: Path | None,
) -> None:
    """Raises UsageError for arguments that do not go together."""
    if tokens < 1:
        raise UsageError(f"--tokens must be at least 1, not {tokens}")
    if sum((tp is not None, bool(compare), plan_file is not None)) != 1:
        raise UsageError("give one of --tp N, --compare N,N and --plan FILE, as in --tp 4")
    if compare and (parameter is not None or out is not None):
        raise UsageError("--why and --out are about one plan: give --tp N instead of --compare")


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


def side_by_side(study: Study, sizes: tuple[int, ...], batch: int, as_json: bool) -> None:
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
