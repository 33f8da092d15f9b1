"""The work of `autotp demo`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text

from ... import api
from ...outside.progress import working
from ...planner.plan import Plan
from ...report import byte_size, make_console, number, paragraphs, plan_summary
from ...report.summary import kind_name, share
from ...report.text import add_row, make_table
from ...runtime.groups.launch import run_ranks
from .encode import PRECISIONS, SENTENCES, Encoded, encode, encode_on_rank

NAME = "all-MiniLM-L6-v2"
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}


def shows_equal(folder: Path, tp: int) -> bool:
    """Run the whole model and the ranks, print both beside each other; returns if they are equal."""
    console = make_console()
    with working("planning"):
        plan = api.plan(folder, tp)
    console.print(Text(f"{NAME}: a sentence encoder with trained weights, cut over {tp} processes", "bold"), "")
    console.print(plan_summary(plan), "")
    with working("embedding with the whole model"):
        whole = encode(folder)
    with working(f"embedding on {tp} ranks"):
        ranks = run_ranks(encode_on_rank, tp, folder)
    equal = is_equal(plan, whole, ranks)
    console.print(paragraphs((neighbours(whole, ranks[0]), comparison(plan, whole, ranks), verdict(equal, tp))))
    return equal


def neighbours(whole: Encoded, rank: Encoded) -> Table:
    """The sentences, and for each the one nearest to it by the whole model and by the ranks."""
    table = make_table(
        (">", "sentence", ">nearest", ">whole model", ">on ranks"), title="cosine with the nearest sentence"
    )
    similar = [_similarities(encoded) for encoded in (whole, rank)]
    for i, sentence in enumerate(SENTENCES):
        nearest = [f"{int(matrix[i].argmax()) + 1}" for matrix in similar]
        cosines = (f"{float(matrix[i].max()):.6f}" for matrix in similar)
        add_row(table, (i + 1, sentence, "/".join(dict.fromkeys(nearest)), *cosines))
    return table


def _similarities(encoded: Encoded) -> torch.Tensor:
    """Cosines between all sentences in float32, a sentence's own left out."""
    embeddings = encoded.embeddings[torch.float32]
    return (embeddings @ embeddings.T).fill_diagonal_(-1)


def comparison(plan: Plan, whole: Encoded, ranks: list[Encoded]) -> Table:
    """Numbers of the whole model and of a rank beside each other."""
    held, size = max(rank.parameters for rank in ranks), torch.float32.itemsize
    table = make_table(("", ">whole model", ">a rank"))
    add_row(table, ("parameters", number(whole.parameters), f"{number(held)} ({share(held, whole.parameters)})"))
    add_row(table, ("memory of float32 weights", byte_size(whole.parameters * size), byte_size(held * size)))
    planned, counted = planned_collectives(plan), ranks[0].collectives[0]
    for kind, phase in sorted(planned.keys() | counted.keys()):
        numbers = f"{counted.get((kind, phase), 0)} ran, {planned.get((kind, phase), 0)} planned"
        add_row(table, (f"{kind_name(kind)} in one {phase}", "0", numbers))
    table.add_section()
    for precision in PRECISIONS:
        name = f"largest difference in {str(precision).removeprefix('torch.')}"
        add_row(table, (name, "", f"{difference(whole, ranks, precision):.1e}"))
    return table


def verdict(equal: bool, tp: int) -> Text:
    """One line: equal or not."""
    if equal:
        return Text(f"equal: {tp} ranks compute what the whole model computes", "bold green")
    return Text(f"NOT equal: {tp} ranks compute something else than the whole model", "bold red")


def planned_collectives(plan: Plan) -> dict[tuple[str, str], int]:
    """Collectives of one forward by kind and phase."""
    return dict(Counter((c.kind, c.phase) for c in plan.step() if c.phase == "forward"))


def difference(whole: Encoded, ranks: list[Encoded], precision: torch.dtype) -> float:
    """The largest difference of any number of any embedding on any rank."""
    found = torch.stack([rank.embeddings[precision] for rank in ranks])
    return float((found - whole.embeddings[precision]).abs().max())


def is_equal(plan: Plan, whole: Encoded, ranks: list[Encoded]) -> bool:
    """Returns if embeddings agree to rounding and exactly the planned collectives ran, on every rank."""
    numbers = all(difference(whole, ranks, precision) < TOLERANCES[precision] for precision in PRECISIONS)
    planned = planned_collectives(plan)
    return numbers and all(counted == planned for rank in ranks for counted in rank.collectives)
