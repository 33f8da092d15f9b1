"""The work of `autotp calibrate`: measure on ranks, write the file, and print what was found."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
import torch.distributed as dist
from rich.table import Table
from rich.text import Text

from ...outside.progress import working
from ...report import byte_size, make_console, paragraphs
from ...report.text import add_row, duration, make_table
from ...runtime.groups.launch import join_group, run_ranks
from ...session.calibrate import Calibration, calibrate, write_node

TIMEOUT_S = 120.0


def measure_and_write(name: str, local: int | None, dtype: str | None, out: Path, as_json: bool) -> None:
    """Measure on so many ranks of this machine, or on those that torchrun started; the first one writes and prints."""
    if local is None:
        join_group(TIMEOUT_S)
        try:
            found, first = calibrate(name, dtype), dist.get_rank() == 0
        finally:
            dist.destroy_process_group()
        if not first:
            return
    else:
        with working(f"measuring {local} ranks"):
            found = run_ranks(calibrate, local, name, dtype, timeout_s=TIMEOUT_S, backend=None)[0]
    path = write_node(found.node, out)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
        return
    use = f"autotp plan MODEL --tp {found.ranks} --rules {out} --hardware {name}"
    make_console().print(paragraphs((_rates(found), _times(found), Text(f"{path} is written. Plans for it:\n  {use}"))))


def _rates(found: Calibration) -> Table:
    node, table = found.node, make_table(("one rank", ">measured"))
    rows = (
        ("products of matrices", f"{node.tflops_bf16:.3g} TFLOP/s"),
        ("memory", f"{node.memory_gbps:.3g} GB/s"),
        ("a call of a collective", f"{node.latency_us:.3g} us"),
        ("each step of it", f"{node.hop_us:.3g} us"),
        ("link", f"{node.link_gbps:.3g} GB/s"),
    )
    for row in rows:
        add_row(table, row)
    return table


def _times(found: Calibration) -> Table:
    """Each collective beside what the numbers say of it."""
    table = make_table(("collective", ">size", ">measured", ">by these numbers"))
    for timing in found.timings:
        said = found.node.seconds(timing.kind, timing.size, found.ranks)
        add_row(table, (timing.kind, byte_size(timing.size), duration(timing.seconds), duration(said)))
    return table
