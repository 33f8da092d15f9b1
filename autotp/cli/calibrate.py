"""`autotp calibrate`: this machine's own rates, as a hardware file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from ..errors import UsageError
from .generate import DTYPES, local_size
from .options import importing, json_option

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@click.command("calibrate")
@click.argument("name")
@click.option("--tp", type=int, metavar="N", help="Number of local ranks to start; under torchrun, all it started.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("rules"),
    show_default=True,
    metavar="DIR",
    help="The folder of rules that gets hardware/NAME.toml.",
)
@click.option(
    "--dtype", type=click.Choice(DTYPES[1:]), help="Of the products: bfloat16, on CPUs float32, unless given."
)
@json_option
def calibrate_command(name: str, tp: int | None, out: Path, dtype: str | None, as_json: bool) -> None:
    """Measure this machine, and write its rates to a hardware file called NAME.

    Products of matrices, copies of memory and collectives are timed while all ranks run. Plans for the file are ranked by
    these numbers. Nothing else should run meanwhile; it takes some seconds.

    \b
    Examples:
      autotp calibrate my-node --tp 8
      autotp plan llama --tp 8 --rules rules --hardware my-node
      torchrun --nproc-per-node 8 -m autotp.cli calibrate my-node --out my-rules
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a node; write it with letters, digits, - and _")
    local = None if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else local_size(tp)
    if local == 1:
        raise UsageError("--tp 1 has no collectives to measure; give 2 or more")
    with importing():
        from .work.calibrate import measure_and_write
    measure_and_write(name, local, dtype, out, as_json)
