"""A verification report as tables: the worst differences, the collectives, and one line that says if it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from rich.console import Group
from rich.table import Table
from rich.text import Text

from .text import add_row, make_table, number, paragraphs

SHOWN = 5


class Difference(Protocol):
    """The largest difference found in one tensor."""

    @property
    def name(self) -> str: ...
    @property
    def error(self) -> float: ...
    @property
    def call(self) -> str: ...


class Verification(Protocol):
    """What a verification found; `autotp.Report` is one."""

    @property
    def model(self) -> str: ...
    @property
    def tp(self) -> int: ...
    @property
    def outputs(self) -> Sequence[Difference]: ...
    @property
    def gradients(self) -> Sequence[Difference]: ...
    @property
    def planned(self) -> Mapping[str, int]: ...
    @property
    def counted(self) -> Mapping[str, int]: ...
    @property
    def elements(self) -> tuple[int, int]: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def exact(self) -> bool: ...
    @property
    def counts_agree(self) -> bool: ...
    @property
    def calls(self) -> Sequence[object]: ...
    def differing(self) -> Sequence[str]: ...


def verification(report: Verification) -> Group:
    """The worst outputs and gradients, planned and counted collectives, and the verdict."""
    whole, local = report.elements
    model = Text(
        f"{report.model} on {report.tp} ranks, each with {number(local)} of {number(whole)} parameters", "bold"
    )
    return paragraphs((model, _differences(report), _collectives(report), verdict(report)))


def _differences(report: Verification) -> Table:
    table = make_table(("largest differences from the whole model", "of", "in", ">relative"))
    for kind, differences in (("output", report.outputs), ("gradient", report.gradients)):
        worst = sorted(differences, key=_badness, reverse=True)
        for difference in worst[:SHOWN]:
            style = "" if difference.error <= report.tolerance else "red"
            add_row(table, (difference.name, kind, difference.call, f"{difference.error:.1e}"), style=style)
        if len(worst) > SHOWN:
            add_row(table, (f"and {len(worst) - SHOWN} smaller", kind, "", ""))
        table.add_section()
    return table


def _badness(difference: Difference) -> float:
    return math.inf if math.isnan(difference.error) else difference.error


def _collectives(report: Verification) -> Table:
    table = make_table(("collectives of one step", ">planned", ">counted"))
    for name in sorted({*report.planned, *report.counted}):
        planned, counted = report.planned.get(name, 0), report.counted.get(name, 0)
        is_right = planned == counted or report.counts_agree
        add_row(table, (name.replace("_", "-"), planned, counted), style="" if is_right else "red")
    if not table.row_count:
        add_row(table, ("none", 0, 0))
    return table


def verdict(report: Verification) -> Text:
    """One line: equal, or what is not, and in which calls."""
    limit, total = f"{report.tolerance:.0e}", len(report.outputs) + len(report.gradients)
    calls = f" in {len(report.calls)} calls" if report.calls else ""
    if report.exact and report.counts_agree:
        return Text(
            f"equal: all {total} tensors are within {limit}{calls}, the collectives are the planned ones", "bold green"
        )
    beyond = sum(not d.error <= report.tolerance for d in (*report.outputs, *report.gradients))
    wrong = [f"{beyond} of {total} tensors differ by more than {limit}"] if not report.exact else []
    wrong += ["other collectives ran than were planned"] if not report.counts_agree else []
    where = f", in {', '.join(report.differing())}" if report.differing() else ""
    return Text(f"NOT equal: {' and '.join(wrong)}{where}", "bold red")
