"""`autotp verify`: the parallel model against the dense one, all ranks simulated in this process."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import UsageError
from ..huggingface.names import check_named, names_a_type
from ..session.arguments import rule_folders
from ..verify import check_simulated
from .options import (
    MODEL_HELP,
    importing,
    json_option,
    model_argument,
    read_plan,
    rules_option,
    sequence_option,
    tp_option,
)


@click.command("verify", epilog=MODEL_HELP)
@model_argument
@tp_option
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The plan to verify; the best one unless given.",
)
@click.option("--tiny", is_flag=True, help="Verify a small model of the same kind; a mere type is always made small.")
@sequence_option
@rules_option
@json_option
@click.pass_context
def verify_command(
    context: click.Context,
    model: str,
    tp: int,
    plan_file: Path | None,
    tiny: bool,
    sequence_parallel: bool,
    rules: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Compare MODEL, cut over N simulated ranks, with the whole model, in float64 and with random weights.

    Outputs, every gradient and the number of collectives are compared in three calls: in eval mode, with other inputs in
    training mode, and as the first time again. The exit code is 1 if they are not equal.

    \b
    Examples:
      autotp verify gpt2 --tp 2
      autotp verify ./checkpoint --tp 4
      autotp verify llama --tp 4 --sequence-parallel
      autotp verify ./checkpoint --tp 8 --tiny
      autotp verify ./checkpoint --tp 4 --plan plan.json
    """
    if tiny and plan_file is not None:
        raise UsageError("give --tiny or --plan, not both: a plan fits one model, and the small one is another")
    plan = read_plan(plan_file, "--plan") if plan_file is not None else None
    check_named(model)
    if plan is None and not tiny and names_a_type(model):
        click.echo(f"{model} is a type, not a checkpoint: verifying a small model of it", err=True)
        tiny = True
    check_simulated(tp)
    folders = rule_folders(rules)
    with importing():
        from .work.verify import verified
    if not verified(model, tp, tiny, plan, sequence_parallel, folders, as_json):
        context.exit(1)
