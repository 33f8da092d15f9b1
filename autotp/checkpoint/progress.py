"""A bar for long reading and writing, on standard error of rank 0 if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@contextmanager
def bar(what: str, total: int, rank: int) -> Iterator[Callable[[int], None]]:
    """Gives a function to be told of bytes that were read or written, `total` in all."""
    console = Console(stderr=True)
    if rank != 0 or not console.is_terminal:
        yield lambda count: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
