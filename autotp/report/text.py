"""Names and numbers as people read them, and the one look that all tables share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def number(value: float) -> str:
    """A count with separators: 1,234,567."""
    return f"{value:,.0f}"


def byte_size(value: float) -> str:
    """Bytes in the largest binary unit that leaves at least one: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def duration(seconds: float) -> str:
    """A time from microseconds up: 11.2 µs."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def dims(shape: Sequence[int]) -> str:
    """A shape: 64 × 192, with a word for no dimension at all."""
    return " × ".join(map(str, shape)) or "scalar"


def fold(names: Iterable[str]) -> list[str]:
    """Names that differ only in numbers, written once each: `layers.{0..31}.weight`."""
    paths = [tuple(name.split(".")) for name in names]
    for place in range(max(map(len, paths), default=0)):
        paths = _fold_place(paths, place)
    return [".".join(path) for path in paths]


def _fold_place(paths: Sequence[tuple[str, ...]], place: int) -> list[tuple[str, ...]]:
    """Paths that are equal but for a number at one place become one path, in order of first appearance."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for path in paths:
        numbered = len(path) > place and path[place].isdecimal()
        key = (numbered, path[:place], path[place + 1 :] if numbered else path[place:])
        groups.setdefault(key, []).extend([int(path[place])] if numbered else [])
    folded = []
    for (_, before, after), values in groups.items():
        middle = (_ranges(values),) if values else ()
        folded.append((*before, *middle, *after))  # type: ignore[misc]
    return folded


def _ranges(values: Iterable[int]) -> str:
    """Numbers as `{0..3,7}`; a single one as itself."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    return words[0] if words == [str(runs[0][0])] else "{" + ",".join(words) + "}"


def place_of(instances: Sequence[str]) -> str:
    """Where units are; the path of the model itself is empty and gets a name."""
    return ", ".join(fold(instances)) or "(the whole model)"


def paragraphs(parts: Iterable[RenderableType]) -> Group:
    """Parts one below the other, with an empty line between them."""
    spaced = [piece for part in parts for piece in (Text(), part)]
    return Group(*spaced[1:])


def make_table(columns: Sequence[str], title: str = "") -> Table:
    """An empty table; a column whose name begins with `>` is aligned to the right."""
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for column in columns:
        right = column.startswith(">")
        table.add_column(Text(column.lstrip(">")), justify="right" if right else "left", overflow="fold")
    return table


def add_row(table: Table, cells: Iterable[object], style: str = "") -> None:
    """Add a row of plain text: nothing in a cell is markup."""
    table.add_row(*(Text(str(cell)) for cell in cells), style=style or None)
