"""What a command says of a model: printed, and kept for the next time that it is asked."""

from __future__ import annotations

import json
from typing import Any

from rich.console import RenderableType
from torch import nn

from ...outside.console import make_console
from ...session.plan_cache import class_files
from ..kept import Question, show


def print_answer(answer: RenderableType, question: Question | None, model: nn.Module) -> None:
    """Print what a console shows, or a text as it is. A question that has one keeps it as long as the model's classes stay."""
    text = answer if isinstance(answer, str) else _shown(answer)
    if question is not None:
        question.keep(text, class_files(model))
    show(text)


def as_text(data: Any) -> str:
    """Data as JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _shown(answer: RenderableType) -> str:
    console = make_console()
    with console.capture() as captured:
        console.print(answer)
    return captured.get()
