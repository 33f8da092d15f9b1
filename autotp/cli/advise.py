"""`autotp advise`: how to use a node for a model."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import UsageError
from ..huggingface.names import check_named
from ..planner.cost import hardware as node
from ..session.arguments import rule_folders
from .kept import Question
from .options import (
    MODEL_HELP,
    batch_option,
    hardware_option,
    importing,
    json_option,
    model_argument,
    rules_option,
    tokens_option,
)

TRAIN, SERVE = "train", "serve"


@click.command("advise", epilog=MODEL_HELP)
@model_argument
@hardware_option
@tokens_option
@batch_option
@click.option(
    "--train", "purpose", flag_value=TRAIN, default=True, help="For training steps on these tokens (default)."
)
@click.option("--serve", "purpose", flag_value=SERVE, help="For writing a token of every sequence at a time.")
@rules_option
@json_option
def advise_command(
    model: str, hardware: str, tokens: int, batch: int, purpose: str, rules: tuple[Path, ...], as_json: bool
) -> None:
    """Recommend how many ranks to cut MODEL over on one node, and how many replicas to run around that.

    \b
    Examples:
      autotp advise llama --hardware h100-nvlink-8 --tokens 65536 --batch 16
      autotp advise llama --hardware l4-pcie-4 --tokens 8192 --batch 4 --serve
      autotp advise ./checkpoint --serve --json | jq .best
    """
    if tokens < 1:
        raise UsageError(f"--tokens must be at least 1, not {tokens}")
    if batch < 1 or tokens % batch:
        raise UsageError(f"{tokens} tokens cannot be {batch} sequences of equal length")
    check_named(model)
    node(hardware, rule_folders(rules))
    question = Question.of(model, rule_folders(rules))
    if question is not None and question.is_answered():
        return
    with importing():
        from .work.advise import print_advice
    print_advice(model, hardware, tokens, batch, purpose, rules, as_json, question)
