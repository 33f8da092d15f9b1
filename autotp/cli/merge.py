"""`autotp merge`: what `autotp shard` wrote back into an ordinary checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from ..outside.progress import working
from .options import importing, overwrite_option


@click.command("merge")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--max-shard-size", default="50GB", show_default=True, metavar="SIZE", help="Size of the largest file.")
@overwrite_option
def merge_command(folder: Path, out: Path, max_shard_size: str, overwrite: bool) -> None:
    """Put the ranks of FOLDER together into the ordinary checkpoint OUT.

    \b
    Example:
      autotp merge ./checkpoint-tp8 ./checkpoint
    """
    with importing():
        from ..report import byte_size, make_console
        from ..session.shards import merge
    with working(f"merging {folder}"):
        merge(folder, out, max_shard_size=max_shard_size, overwrite=overwrite)
    files = sorted(out.glob("*.safetensors"))
    size = byte_size(sum(file.stat().st_size for file in files))
    make_console().print(f"{out}: {len(files)} {'file' if len(files) == 1 else 'files'}, {size}")
