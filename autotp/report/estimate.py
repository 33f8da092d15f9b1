"""What a plan means for a rank: memory in training and in serving, bytes sent a token, time and how much of it is sending."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ..planner.estimate import Estimate, Memory, Time
from .summary import share
from .text import add_row, byte_size, duration, make_table, number, place_of


def plan_estimate(found: Estimate) -> list[Table | Text]:
    """Memory, bytes a token, and time."""
    return [_memory(found), *([_traffic(found)] if found.traffic else []), _times(found), *_unknown(found)]


def _memory(found: Estimate) -> Table:
    of = "one sequence" if found.batch == 1 else f"{number(found.batch)} sequences"
    table = make_table((f"memory of a rank, {of} of {number(found.sequence)} tokens", ">training", ">serving"))
    for name, training, serving in memory_rows(found.memory):
        add_row(table, (name, _bytes(training), _bytes(serving)))
    table.add_section()
    both = found.memory.training, found.memory.serving
    add_row(table, ("all", *map(byte_size, both)), style="bold")
    add_row(table, (f"of {byte_size(found.available)}", *(share(size, found.available) for size in both)))
    return table


def memory_rows(memory: Memory) -> tuple[tuple[str, float | None, float | None], ...]:
    """What takes memory, in training and in serving; None where a phase has no such thing."""
    return (
        ("weights", memory.weights, memory.weights),
        ("gradients", memory.gradients, None),
        ("optimizer (AdamW, three float32 each)", memory.optimizer, None),
        ("activations kept for the backward", memory.activations, None),
        ("KV cache", None, memory.cache),
    )


def _bytes(size: float | None) -> str:
    return "-" if size is None else byte_size(size)


def _traffic(found: Estimate) -> Table:
    table = make_table(
        ("bytes that a rank sends", ">units", ">a token forward", ">a token backward", ">a step besides")
    )
    for t in found.traffic:
        cells = (byte_size(t.forward), byte_size(t.backward), byte_size(t.parameters))
        add_row(table, (f"{place_of(t.instances)}, each", len(t.instances), *cells))
    table.add_section()
    sums = (
        byte_size(sum(len(t.instances) * size for t, size in zip(found.traffic, sizes, strict=True)))
        for sizes in zip(*((t.forward, t.backward, t.parameters) for t in found.traffic), strict=True)
    )
    add_row(table, ("the whole model", sum(len(t.instances) for t in found.traffic), *sums), style="bold")
    return table


def _times(found: Estimate) -> Table:
    title = f"estimated time on {found.hardware}, nothing overlapped"
    table = make_table((title, ">compute", ">communication", ">together", ">communication is"))
    for name, time in (("one forward", found.forward), ("one backward", found.backward), ("one step", found.step)):
        add_row(table, (name, *_time(time)), style="bold" if time is found.step else "")
    table.add_section()
    after = (
        f"one more token of {'the sequence' if found.batch == 1 else 'each sequence'}, after {number(found.sequence)}"
    )
    add_row(table, (after, *_time(found.token)))
    return table


def _unknown(found: Estimate) -> list[Text]:
    """What the tables leave out."""
    return [Text("\n".join(f"not counted above: {reason}" for reason in found.unknown))] if found.unknown else []


def _time(time: Time) -> tuple[str, ...]:
    return duration(time.compute), duration(time.communication), duration(time.total), f"{time.share:.0%}"
