"""Where text goes: as wide as a terminal, plain and of one width in a pipe or a file."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console

PIPED_WIDTH = 120


def make_console(file: TextIO | None = None) -> Console:
    """A console on a stream, standard output unless given; plain where it is no terminal or NO_COLOR is set."""
    plain = bool(os.environ.get("NO_COLOR"))
    console = Console(
        file=file, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto", no_color=plain
    )
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    return console
