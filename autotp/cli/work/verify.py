"""The work of `autotp verify`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import click
from torch import nn

from ...errors import UsageError
from ...huggingface import models
from ...huggingface.tiny import tiny_config
from ...outside.progress import working
from ...planner.plan import Plan
from ...report import make_console, number, verification
from ...verify import verify

LARGEST = 300_000_000  # parameters; simulated ranks hold several float64 copies of them


def verified(
    model: str,
    tp: int,
    tiny: bool,
    plan: Plan | None,
    sequence_parallel: bool,
    rules: tuple[Path, ...],
    as_json: bool,
) -> bool:
    """Verify a model, or a small one of its kind, and print what was found; returns if all is equal."""
    with working(f"verifying {model} on {tp} simulated ranks"):
        report = verify(module_of(model, tiny), tp, plan=plan, sequence_parallel=sequence_parallel, rules=rules)
    if as_json:
        click.echo(report.to_json(), nl=False)
    else:
        make_console().print(verification(report))
    return report.ok


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
