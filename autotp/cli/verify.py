"""`autotp verify`: the parallel model against the dense one, all ranks simulated in this process."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import click
from torch import nn

from ..errors import UsageError
from ..huggingface import models
from ..huggingface.tiny import names_a_type, tiny_config
from ..report import make_console, number, verification
from ..verify import verify
from .options import (
    MODEL_HELP,
    json_option,
    model_argument,
    read_plan,
    rules_option,
    sequence_option,
    tp_option,
    working,
)

LARGEST = 300_000_000  # parameters; simulated ranks hold several float64 copies of them


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
    if plan is None and not tiny and names_a_type(model):
        click.echo(f"{model} is a type, not a checkpoint: verifying a small model of it", err=True)
        tiny = True
    with working(f"verifying {model} on {tp} simulated ranks"):
        report = verify(module_of(model, tiny), tp, plan=plan, sequence_parallel=sequence_parallel, rules=rules)
    if as_json:
        click.echo(report.to_json(), nl=False)
    else:
        make_console().print(verification(report))
    if not report.ok:
        context.exit(1)


def module_of(source: str, tiny: bool) -> nn.Module:
    """The model to verify, without weights. Raises UsageError for one too large to simulate."""
    config = models.config_of(source)
    model = small_model(config) if tiny else models.build_model(config)
    size = sum(parameter.numel() for parameter in model.parameters())
    if size > LARGEST:
        raise UsageError(
            f"{source} has {number(size)} parameters, too many to simulate; "
            "add --tiny to verify a small model of the same kind"
        )
    return model


def small_model(config: Any) -> nn.Module:
    """A small model of the same kind. Raises UsageError for a kind whose sizes depend on each other in its own way."""
    try:
        return models.build_model(tiny_config(config))
    except Exception as error:
        raise UsageError(
            f"cannot make a small model of type {config.model_type} ({textwrap.shorten(str(error), 150)}); "
            "write a small config.json and verify that"
        ) from error
