"""The work of `autotp plan`: make a plan, and print it from the side that was asked for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import RenderableType

from ...errors import UsageError
from ...outside.progress import working
from ...planner.plan import Plan
from ...report import why_data, why_text
from ...session.arguments import Wishes
from ...session.study import Study
from ..kept import Question
from ..view import as_text, plan_view, sizes_view
from .answer import print_answer


def print_plan(
    model: str,
    sizes: tuple[int, ...],
    wishes: Wishes,
    *,
    edited: Plan | None,
    side_by_side: bool,
    parameter: str | None,
    batch: int,
    as_json: bool,
    out: Path | None,
    question: Question | None,
) -> None:
    """Plan for these numbers of ranks, or take the edited plan, and print what was asked for, which is kept for a question."""
    with working(f"planning {model} for {' and '.join(map(str, sizes))} ranks"):
        study = Study(model, **wishes)
        plan = study.read(edited) if edited is not None else study.plan(sizes[0])
    if out is not None:
        save(plan, out)
    print_answer(view(study, plan, sizes, parameter, batch, side_by_side, as_json), question, study.module)


def view(
    study: Study,
    plan: Plan,
    sizes: tuple[int, ...],
    parameter: str | None,
    batch: int,
    side_by_side: bool,
    as_json: bool,
) -> RenderableType:
    """One parameter, several sizes, or everything about one plan."""
    if parameter is not None:
        found = study.why(plan, parameter)
        return as_text(why_data(found)) if as_json else why_text(found)
    estimate = partial(study.estimate, batch=batch)
    if side_by_side:
        return sizes_view(map(study.plan, dict.fromkeys(sizes)), estimate, as_json)
    return plan_view(plan, estimate, as_json)


def save(plan: Plan, path: Path) -> None:
    """Write a plan to a file. Raises UsageError if that is impossible."""
    try:
        plan.save(path)
    except OSError as error:
        raise UsageError(f"cannot write --out {path}: {error.strerror}") from error
