"""What `autotp.diff` returns: the differences for one or several tensor-parallel sizes, and how to see them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path

from rich.console import Group

from ...errors import UsageError, nearest
from ...outside.console import make_console
from ..text import paragraphs
from .data import Diff, UnitDiff
from .dot import diff_dot, render_svg
from .page import make_page
from .text import CONTEXT, diff_text

VERSION = 1


@dataclass(frozen=True)
class GraphDiff:
    """A model before and after, for one or several tensor-parallel sizes."""

    diffs: tuple[Diff, ...]

    def only(self, unit: str) -> GraphDiff:
        """The difference in the units with this path, or with paths that match a pattern such as `model.layers.*`.

        Raises UsageError naming the nearest unit if there is none.
        """
        diffs = tuple(dataclasses.replace(diff, units=tuple(_matching(diff, unit))) for diff in self.diffs)
        if not any(diff.units for diff in diffs):
            known = {
                path or "." for diff in self.diffs for u in diff.units for path in (u.instances[0], u.instances[-1])
            }
            raise UsageError(f"no unit matches {unit!r}{nearest(unit, known)}")
        return GraphDiff(tuple(diff for diff in diffs if diff.units))

    def renderable(self, context: int = CONTEXT, full: bool = False) -> Group:
        """The difference for a rich console."""
        return paragraphs(diff_text(diff, diff.units, context, full) for diff in self.diffs)

    def text(self, unit: str | None = None, context: int = CONTEXT, full: bool = False) -> str:
        """The difference as plain text; see `autotp diff --help`."""
        file = StringIO()
        make_console(file).print((self.only(unit) if unit is not None else self).renderable(context, full))
        return file.getvalue()

    def json(self) -> str:
        """Everything as JSON: `{"version": 1, "diffs": [{"plan": ..., "units": [...]}, ...]}`."""
        data = {"version": VERSION, "diffs": [dataclasses.asdict(diff) for diff in self.diffs]}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    def dot(self) -> str:
        """The graphs in the language of Graphviz, before and after side by side."""
        return diff_dot(self.diffs)

    def svg(self) -> str:
        """The graphs drawn by Graphviz. Raises UsageError if its program `dot` is not installed."""
        return render_svg(self.dot())

    def page(self) -> str:
        """One HTML page that needs no other file and no network."""
        return make_page(self.diffs)

    def html(self, path: str | Path) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.page(), encoding="utf-8")


def _matching(diff: Diff, wanted: str) -> Iterator[UnitDiff]:
    wanted = "" if wanted == "." else wanted
    return (u for u in diff.units if any(path == wanted or fnmatchcase(path, wanted) for path in u.instances))
