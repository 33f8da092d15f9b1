"""What a command printed about a type of model, kept: to plan takes seconds, most of them imports, and gives the same again.

An answer holds for the question (all options, and where it is printed), the versions of torch and transformers, the files of
autotp and of the rules, and the files with the model's classes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from ..huggingface.names import names_in_files
from ..outside.console import make_console
from ..outside.kept import digest_of, folder, keep, sources_digest

AGAIN = "again"  # the option that says not to look what was kept


@dataclass(frozen=True)
class Question:
    """What a command is asked of a type of model."""

    file: Path

    @staticmethod
    def of(model: str, rules: Iterable[Path]) -> Question | None:
        """The question of the command that runs; None for a model of which more decides than the files of classes."""
        context, console = click.get_current_context(), make_console()
        if model not in names_in_files() or Path(model).exists():
            return None
        try:
            versions = [sys.version, *map(importlib.metadata.version, ("torch", "transformers"))]
        except importlib.metadata.PackageNotFoundError:
            return None
        printed = console.width, console.color_system, console.is_terminal, console.encoding
        options = sorted((name, value) for name, value in context.params.items() if name != AGAIN)
        asked = repr((context.command.name, options, versions, printed, sources_digest(tuple(rules))))
        return Question(folder() / "answers" / f"{hashlib.sha256(asked.encode()).hexdigest()}.json")

    def is_answered(self) -> bool:
        """Print what was printed before, if it is known."""
        known = self.answer()
        if known is not None:
            show(known)
        return known is not None

    def answer(self) -> str | None:
        """What was printed before, if the model's classes are still what they were."""
        try:
            known = json.loads(self.file.read_text(encoding="utf-8"))
            return str(known["text"]) if known["classes"] == digest_of("", map(Path, known["files"])) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, text: str, files: Iterable[Path]) -> None:
        """Keep what is printed for a model with classes in these files."""
        found = list(files)
        known = {"text": text, "files": list(map(str, found)), "classes": digest_of("", found)}
        keep(self.file, json.dumps(known, ensure_ascii=False))


def show(text: str) -> None:
    """Print a text with the colours that it has, which the console has decided on."""
    click.echo(text, nl=False, color=True)
