"""`autotp shard`: an ordinary checkpoint into one folder a rank."""

from __future__ import annotations

from pathlib import Path

import click

from ..outside.progress import working
from ..planner.plan import Plan
from ..session.arguments import check_size
from .options import importing, overwrite_option, read_plan, tp_option


@click.command("shard", epilog="MODEL is the folder of a checkpoint, or a model id in the local cache.")
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@tp_option
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="A plan of autotp plan --out."
)
@overwrite_option
def shard_command(model: str, out: Path, tp: int, plan_file: Path | None, overwrite: bool) -> None:
    """Cut the checkpoint MODEL for N ranks into the folder OUT, one folder a rank.

    Each rank then reads its own folder and nothing else: autotp.from_pretrained(OUT). Needs no GPU and no other process, and
    never holds more than one whole tensor. autotp merge undoes it.

    \b
    Examples:
      autotp shard ./checkpoint ./checkpoint-tp8 --tp 8
      autotp shard ./checkpoint ./checkpoint-tp8 --tp 8 --plan plan.json
    """
    check_size(tp)
    plan: Plan | None = None if plan_file is None else read_plan(plan_file, "--plan")
    with importing():
        from ..report import byte_size, make_console
        from ..session.shards import shard
    with working(f"cutting {model} for {tp} ranks"):
        shard(model, out, tp, plan=plan, overwrite=overwrite)
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in sorted(out.glob(f"rank-*-of-{tp}"))]
    make_console().print(f"{out}: {tp} ranks, {byte_size(max(sizes))} each")
