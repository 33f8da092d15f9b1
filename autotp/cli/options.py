"""What commands share: the arguments that several take, and a sign of life for long work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

MODEL_HELP = "MODEL is a folder, a config.json, a model id in the local cache, or a type such as llama or gpt2."

model_argument = click.argument("model")
tp_option = click.option("--tp", type=int, required=True, metavar="N", help="Number of tensor-parallel ranks.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
rules_option = click.option(
    "--rules",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder with rules of your own; may be repeated.",
)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on standard error what goes on, if somebody is there to see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
