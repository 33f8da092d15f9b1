"""The work of `autotp advise`: plans of every size, weighed against replicas."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ...outside.progress import working
from ...planner.advise import advise
from ...planner.estimate import Estimate
from ...planner.plan import Plan
from ...report import make_console
from ...report.advice import advice_data, advice_text
from ...session.study import Study


def print_advice(
    model: str, hardware: str, tokens: int, batch: int, purpose: str, rules: tuple[Path, ...], as_json: bool
) -> None:
    """Weigh all sizes of a node, and print the best."""
    with working(f"planning {model} for every size of {hardware}"):
        study = Study(model, hardware=hardware, tokens=tokens // batch, rules=rules)

        def made(tp: int, sequences: int) -> tuple[Plan, Estimate]:
            plan = study.plan(tp)
            return plan, study.estimate_of(plan, sequences, tokens // batch)

        advice = advise(made, study.machine, purpose, tokens, batch)
    if as_json:
        click.echo(json.dumps(advice_data(advice), indent=2, ensure_ascii=False))
    else:
        make_console().print(advice_text(advice))
