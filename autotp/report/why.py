"""Why one parameter is placed as it is, for a terminal."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from .text import add_row, byte_size, dims, duration, make_table, number, paragraphs

if TYPE_CHECKING:
    from ..planner.why import Why


def why_text(why: Why) -> Group:
    """The parameter, each dim in words, the rule, and every alternative with what it costs."""
    return paragraphs((_head(why), _dims(why), _rule(why), _alternatives(why)))


def _head(why: Why) -> Text:
    p = why.parameter
    equal = f", as in {why.units} equal units" if why.units > 1 else ""
    local = "all of it on every rank" if p.placement == "replicated" else f"{dims(p.local_shape)} on a rank"
    return Text(f"{why.name}: {p.placement}, {dims(p.shape)}, {local}{equal}", "bold")


def _dims(why: Why) -> Table:
    table = make_table(("dim", ">size", "made of", "layout"), title="what is inferred")
    for i, dim in enumerate(why.dims):
        add_row(table, (i, dim.size, "\n".join((dim.words, *dim.pins)), dim.layout))
    return table


def _rule(why: Why) -> Text:
    p = why.parameter
    lines = [f"rule {p.rule}: {p.reason}" if p.rule else p.reason]
    lines += [miss for miss in why.misses if p.reason not in miss]
    return Text("\n".join(lines))


def _alternatives(why: Why) -> Table:
    columns = ("", "layouts", ">parameters of the unit", ">wire bytes", ">time", "")
    table = make_table(columns, title="every way to hold it, with the best of the rest")
    for a in sorted(why.alternatives, key=lambda a: (bool(a.refused), a.elements, a.seconds)):
        price = ("", "", "") if a.refused else (number(a.elements), byte_size(a.bytes), duration(a.seconds))
        mark = "»" if a.chosen else ""
        words = "chosen" if a.chosen else f"refused: {a.refused}" if a.refused else ""
        add_row(table, (mark, ", ".join(a.layouts), *price, words), style="bold" if a.chosen else "")
    return table


def why_data(why: Why) -> dict[str, object]:
    """The same as plain data."""
    return dataclasses.asdict(why)
