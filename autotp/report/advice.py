"""Advice on how to use a node, for a terminal and as data."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..planner.advise import TRAIN, Advice, Option
from .compare import some
from .text import add_row, byte_size, duration, make_table, number, paragraphs


def advice_text(advice: Advice) -> Group:
    """Every way to use the node, the sizes that do not divide, and the recommendation with its numbers."""
    parts = [_options(advice), *([_spare(advice)] if any(o.padded or o.shared for o in advice.options) else [])]
    return paragraphs((*parts, _verdict(advice)))


def _options(advice: Advice) -> Table:
    first = advice.options[0]
    what = f"{number(advice.tokens)} tokens a step, sequences of {number(first.sequence)}"
    if advice.purpose != TRAIN:
        what = f"sequences of up to {number(first.sequence)} tokens"
    title = f"{advice.model}: {advice.purpose} on {advice.hardware}, {what}"
    columns = ("", ">tp", ">dp", ">sequences each", ">memory", ">compute", ">communication", ">gradients", ">tokens/s")
    table = make_table(columns, title=title)
    for o in advice.options:
        room = byte_size(o.memory) + ("" if o.fits else " too much")
        times = (duration(o.compute), duration(o.communication), duration(o.gradients) if o.gradients else "-")
        mark, style = ("»", "bold green") if o == advice.best else ("", "" if o.fits else "dim")
        add_row(table, (mark, o.tp, o.dp, o.batch, room, *times, number(advice.rate(o))), style=style)
    return table


def _spare(advice: Advice) -> Table:
    table = make_table((">tp", "padded with zeros to divide", "cut in fewer parts than ranks, so shared"))
    for o in advice.options:
        if o.padded or o.shared:
            add_row(table, (o.tp, some(o.padded), some(o.shared)))
    return table


def _verdict(advice: Advice) -> Text:
    best = advice.best
    if best is None:
        least = min(advice.options, key=lambda o: o.memory)
        return Text(
            f"nothing fits: even tp {least.tp} takes {byte_size(least.memory)} a rank of {byte_size(advice.available)}; use "
            "fewer tokens a step, or larger or more nodes",
            "bold red",
        )
    unit = "a step" if advice.purpose == TRAIN else "a token of every sequence"
    return Text(
        f"use tp {best.tp} and dp {best.dp}: {byte_size(best.memory)} of {byte_size(advice.available)} a rank, "
        f"{duration(best.seconds)} {unit}, {number(advice.rate(best))} tokens/s",
        "bold green",
    )


def advice_data(advice: Advice) -> dict[str, Any]:
    """The same as plain data."""
    return {**dataclasses.asdict(advice), "options": [_data(advice, o) for o in advice.options]}


def _data(advice: Advice, option: Option) -> dict[str, Any]:
    return {**dataclasses.asdict(option), "seconds": option.seconds, "tokens_per_second": advice.rate(option)}
