"""What a command says of a model: printed, and kept for the next time that it is asked."""

from __future__ import annotations

from rich.console import RenderableType
from torch import nn

from ...session.plan_cache import class_files
from ..kept import Question, show
from ..view import text_of


def print_answer(answer: RenderableType, question: Question | None, model: nn.Module) -> None:
    """Print what a console shows, or a text as it is. A question that has one keeps it as long as the model's classes stay."""
    text = text_of(answer)
    if question is not None:
        question.keep(text, class_files(model))
    show(text)
