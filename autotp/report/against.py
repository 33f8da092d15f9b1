"""Bytes of two plans beside each other, for each unit and token."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from ..planner.plan import CollectivePlan, Plan
from .text import add_row, byte_size, make_table, place_of


def bytes_a_token(ours: Plan, other: Plan, name: str) -> Table:
    """What a rank sends for one token forward and backward, in each unit and in the whole model, and ours as a part of it."""
    table = make_table(
        (
            f"bytes sent a token, tp {ours.tp}",
            ">autotp, forward",
            f">{name}",
            ">part",
            ">autotp, backward",
            f">{name}",
            ">part",
        )
    )
    totals = [0.0] * 4
    for mine, theirs in zip(ours.units, other.units, strict=True):
        sent = [_sent(unit.collectives, phase, ours) for phase in ("forward", "backward") for unit in (mine, theirs)]
        if any(sent):
            each = ", each" if len(mine.instances) > 1 else ""
            add_row(table, (f"{place_of(mine.instances)}{each}", *_cells(sent)))
        totals = [total + len(mine.instances) * size for total, size in zip(totals, sent, strict=True)]
    table.add_section()
    add_row(table, ("the whole model", *_cells(totals)), style="bold")
    return table


def _sent(collectives: Iterable[CollectivePlan], phase: str, plan: Plan) -> float:
    return sum(c.wire_bytes for c in collectives if c.phase == phase and c.of == "activation") / plan.tokens


def _cells(sent: list[float]) -> tuple[str, ...]:
    mine, theirs, mine_back, theirs_back = sent
    return (
        *map(byte_size, (mine, theirs)),
        _part(mine, theirs),
        *map(byte_size, (mine_back, theirs_back)),
        _part(mine_back, theirs_back),
    )


def _part(mine: float, theirs: float) -> str:
    return f"{mine / theirs:.3f}" if theirs else "-"
