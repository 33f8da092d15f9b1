"""`autotp generate`: text from a model over local ranks that it starts itself, or over those that `torchrun` started."""

from __future__ import annotations

import os
import secrets
from typing import Any

import click

from ..errors import UsageError
from ..huggingface.names import check_named, names_a_type
from ..session.arguments import check_size
from .options import importing, json_option, model_argument

MOST_RANKS = 64
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


@click.command("generate", epilog="MODEL is a folder with a checkpoint and its tokenizer, or a model id.")
@model_argument
@click.option("--tp", type=int, metavar="N", help="Number of local ranks to start; under torchrun, all it started.")
@click.option("--prompt", required=True, metavar="TEXT", help="What the text continues, or what is translated.")
@click.option("--max-new-tokens", default=64, show_default=True, metavar="N", help="Most tokens to write.")
@click.option("--do-sample", is_flag=True, help="Draw tokens at random instead of taking the likeliest.")
@click.option("--temperature", type=float, metavar="T", help="With --do-sample: above 1 wilder, below 1 tamer.")
@click.option("--top-k", type=int, metavar="K", help="With --do-sample: draw from the K likeliest tokens only.")
@click.option("--top-p", type=float, metavar="P", help="With --do-sample: draw from the likeliest of mass P only.")
@click.option("--seed", type=int, metavar="S", help="With --do-sample: the same seed writes the same text.")
@click.option("--dtype", type=click.Choice(DTYPES), default="auto", show_default=True, help="auto: the checkpoint's.")
@json_option
def generate_command(
    model: str,
    tp: int | None,
    prompt: str,
    max_new_tokens: int,
    do_sample: bool,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    dtype: str,
    as_json: bool,
) -> None:
    """Write text with MODEL, cut over N ranks on this machine or over those that torchrun started.

    The text goes to standard output as it is written; speed and each rank's memory go to standard error.

    \b
    Examples:
      autotp generate ./checkpoint --tp 2 --prompt "The statement"
      autotp generate ./checkpoint --tp 2 --prompt "The statement" --do-sample --top-p 0.9 --seed 1
      torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
          -m autotp.cli generate ./checkpoint --prompt "The statement"
    """
    check_named(model)
    if names_a_type(model):
        raise UsageError(f"{model!r} is a type without weights; give a folder with a checkpoint, or a model id")
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    settings = settings_of(max_new_tokens, do_sample, sampling)
    local = None if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else local_size(tp)
    drawn = secrets.randbelow(2**32) if seed is None else seed
    with importing():
        from .work.generate import generate
        from .work.write import Request
    generate(Request(model, prompt, dtype, drawn, not as_json, settings), tp, local, as_json)


def settings_of(max_new_tokens: int, do_sample: bool, sampling: dict[str, float | None]) -> dict[str, Any]:
    """Keyword arguments of `generate`. Raises UsageError for one that is wrong or would do nothing."""
    given = {name: value for name, value in sampling.items() if value is not None}
    if max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens must be at least 1, not {max_new_tokens}")
    if given and not do_sample:
        raise UsageError(f"--{next(iter(given)).replace('_', '-')} changes nothing without --do-sample; add it")
    given.pop("seed", None)
    return {"max_new_tokens": max_new_tokens, "do_sample": do_sample, **given}


def local_size(tp: int | None) -> int:
    """How many ranks to start on this machine. Raises UsageError if that is not said, or too many."""
    if tp is None:
        raise UsageError("say on how many ranks of this machine with --tp N, or start them with torchrun")
    check_size(tp)
    if tp > MOST_RANKS:
        raise UsageError(f"--tp {tp} would start {tp} processes here; use at most {MOST_RANKS}, or torchrun")
    return tp
