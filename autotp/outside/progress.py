"""What is being done, for somebody who sits before the terminal: on standard error of the first rank, and nothing where that is
piped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status

# What is shown: the spinners of the command that runs, and lines. Simulated ranks share them.
_spinners: list[Status] = []
_lines: list[str] = []


def is_watched() -> bool:
    """Returns if this process is the first rank, or no rank, and its standard error is a terminal."""
    return os.environ.get("RANK", "0") == "0" and sys.stderr.isatty()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Around the work of a command: a spinner, gone at the end."""
    if not is_watched():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as spinner:
        _spinners.append(spinner)
        try:
            yield
        finally:
            _spinners.remove(spinner)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Around what takes a moment: a line, gone at the end; the words of a command's spinner where there is one.

    It starts no thread, since what runs meanwhile may be traced.
    """
    if not is_watched():
        yield
        return
    if _spinners:
        spinner = _spinners[-1]
        before = spinner.status
        spinner.update(what)
        try:
            yield
        finally:
            spinner.update(before)
        return
    _write(what)
    _lines.append(what)
    try:
        yield
    finally:
        _lines.remove(what)
        _write(_lines[-1] if _lines else "")


def _write(what: str) -> None:
    """Put another line, or nothing, in the place of the one that is there."""
    from rich.console import Console
    from rich.control import Control
    from rich.segment import ControlType

    console = Console(stderr=True, highlight=False)
    console.control(Control((ControlType.ERASE_IN_LINE, 2)))
    if what:
        console.print(f"autotp: {what}", end="\r", markup=False, no_wrap=True, overflow="ellipsis", crop=True)
