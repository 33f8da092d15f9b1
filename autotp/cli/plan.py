"""`autotp plan`: what would be cut how, what it saves and what it costs."""

from __future__ import annotations

from pathlib import Path

import click

from .. import api
from ..errors import UsageError
from ..planner.cost import DEFAULT_HARDWARE, Workload, hardware_presets
from ..planner.plan import Plan
from ..report import make_console, paragraphs, plan_left_whole, plan_summary, plan_units
from .options import MODEL_HELP, json_option, model_argument, rules_option, tp_option, working


@click.command("plan", epilog=MODEL_HELP)
@model_argument
@tp_option
@click.option(
    "--hardware",
    default=DEFAULT_HARDWARE,
    show_default=True,
    metavar="NAME",
    help=f"The node to weigh collectives on: {', '.join(hardware_presets())}.",
)
@click.option("--tokens", default=Workload.tokens, show_default=True, metavar="T", help="Tokens of one step.")
@rules_option
@json_option
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Also write the plan to a file, as JSON.")
def plan_command(
    model: str, tp: int, hardware: str, tokens: int, rules: tuple[Path, ...], as_json: bool, out: Path | None
) -> None:
    """Plan tensor parallelism for MODEL. Needs no weights, no GPU and no other process.

    \b
    Examples:
      autotp plan llama --tp 8
      autotp plan ./checkpoint --tp 4 --hardware a100-nvlink-8 --tokens 16384
      autotp plan gpt2 --tp 2 --out plan.json
      autotp plan gpt2 --tp 2 --json | jq '.units[].instances'
    """
    if tokens < 1:
        raise UsageError(f"--tokens must be at least 1, not {tokens}")
    with working(f"planning {model} for {tp} ranks"):
        plan = api.plan(model, tp, hardware=hardware, tokens=tokens, rules=rules)
    if out is not None:
        save(plan, out)
    if as_json:
        click.echo(plan.to_json(), nl=False)
    else:
        make_console().print(paragraphs((plan_summary(plan), *plan_units(plan), plan_left_whole(plan))))


def save(plan: Plan, path: Path) -> None:
    """Write a plan to a file. Raises UsageError if that is impossible."""
    try:
        plan.save(path)
    except OSError as error:
        raise UsageError(f"cannot write --out {path}: {error.strerror}") from error
