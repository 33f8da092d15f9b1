"""The work of `autotp advise`: plans of every size, weighed against replicas."""

from __future__ import annotations

from pathlib import Path

from ...outside.progress import working
from ...planner.advise import advise
from ...planner.estimate import Estimate
from ...planner.plan import Plan
from ...report.advice import advice_data, advice_text
from ...session.study import Study
from ..kept import Question
from ..view import as_text
from .answer import print_answer


def print_advice(
    model: str,
    hardware: str,
    tokens: int,
    batch: int,
    purpose: str,
    rules: tuple[Path, ...],
    as_json: bool,
    question: Question | None,
) -> None:
    """Weigh all sizes of a node, and print the best, which is kept for a question."""
    with working(f"planning {model} for every size of {hardware}"):
        study = Study(model, hardware=hardware, tokens=tokens // batch, rules=rules)

        def made(tp: int, sequences: int) -> tuple[Plan, Estimate]:
            plan = study.plan(tp)
            return plan, study.estimate_of(plan, sequences, tokens // batch)

        advice = advise(made, study.machine, purpose, tokens, batch)
    print_answer(as_text(advice_data(advice)) if as_json else advice_text(advice), question, study.module)
