"""The work of `autotp generate`: start the ranks or join them, and report what they wrote."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

import click
import torch.distributed as dist
from rich.table import Table
from rich.text import Text

from ...errors import UsageError
from ...huggingface import models
from ...report import byte_size, make_console, paragraphs
from ...report.text import add_row, duration, make_table
from ...runtime.groups.launch import join_group, run_ranks
from .write import Request, Usage, Written, write_on_rank

TIMEOUT_S = 600.0  # how long ranks wait for each other; loading weights takes one longer than another


def generate(request: Request, tp: int | None, local: int | None, as_json: bool) -> None:
    """Write on so many ranks of this machine, started for it and ended after it, or on those that torchrun started."""
    check_source(request.model)
    if local is not None:
        written: Written | None = run_ranks(
            write_on_rank, local, request, timeout_s=TIMEOUT_S, limit_s=None, backend=None
        )[0]
    else:
        written = under_torchrun(request, tp)
    if written is None:
        return  # another rank reports
    if as_json:
        click.echo(json.dumps(report(request, written), indent=2))
    else:
        console = make_console(sys.stderr)
        console.print(paragraphs((Text(), memory(written.ranks), Text(speed(request, written)))))


def check_source(model: str) -> None:
    """Raises UsageError for what does not write text."""
    kind: Any = models.model_class(models.config_of(model))
    if not kind.can_generate():
        raise UsageError(f"a {kind.__name__} does not write text; give a causal or a sequence-to-sequence model")


def under_torchrun(request: Request, tp: int | None) -> Written | None:
    """Write on the ranks of which this process is one; None on all but the first."""
    world = int(os.environ["WORLD_SIZE"])
    if tp not in (None, world):
        raise UsageError(f"torchrun started {world} ranks, and --tp is {tp}; leave it out, or start that many")
    join_group(TIMEOUT_S)
    try:
        # The first rank's seed, where none was given: each process has drawn its own.
        shared = [request]
        dist.broadcast_object_list(shared, src=0)
        written = write_on_rank(shared[0])
        return written if dist.get_rank() == 0 else None
    finally:
        dist.destroy_process_group()


def memory(ranks: tuple[Usage, ...]) -> Table:
    """What each rank holds."""
    table = make_table((">rank", "host", ">parameters", ">KV cache", ">resident memory"))
    for usage in ranks:
        sizes = map(byte_size, (usage.parameter_bytes, usage.cache_bytes, usage.resident_bytes))
        add_row(table, (usage.rank, usage.host, *sizes))
    return table


def speed(request: Request, written: Written) -> str:
    """One line: how much was written how fast."""
    first, rate = duration(written.times_s[0]), written.tokens_per_second
    line = f"{len(written.tokens)} tokens on {len(written.ranks)} ranks, the first after {first}"
    line += f", then {rate:.1f} tokens/s" if rate is not None else ""
    return line + (f"; seed {request.seed}" if request.settings["do_sample"] else "")


def report(request: Request, written: Written) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "model": request.model,
        "tp": len(written.ranks),
        "dtype": request.dtype,
        "prompt": request.prompt,
        "prompt_tokens": written.prompt_tokens,
        "text": written.text,
        "tokens": list(written.tokens),
        "settings": request.settings,
        "seed": request.seed if request.settings["do_sample"] else None,
        "first_token_s": written.times_s[0],
        "tokens_per_second": written.tokens_per_second,
        "ranks": [asdict(usage) for usage in written.ranks],
    }
