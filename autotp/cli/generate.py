"""`autotp generate`: text from a model over local ranks that it starts itself, or over those that `torchrun` started."""

from __future__ import annotations

import json
import os
import secrets
import sys
from dataclasses import asdict
from typing import Any

import click
import torch.distributed as dist
from rich.table import Table
from rich.text import Text

from ..errors import UsageError
from ..huggingface import models
from ..huggingface.tiny import names_a_type
from ..report import byte_size, make_console, paragraphs
from ..report.text import add_row, duration, make_table
from ..runtime.launch import join_group, run_ranks
from ..session.arguments import check_size
from .options import json_option, model_argument
from .write import Request, Usage, Written, write_on_rank

TIMEOUT_S = 600.0  # how long ranks wait for each other; loading weights takes one longer than another
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
@click.pass_context
def generate_command(
    context: click.Context,
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
    check_source(model)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    settings = settings_of(max_new_tokens, do_sample, sampling)
    drawn = secrets.randbelow(2**32) if seed is None else seed
    request = Request(model, prompt, dtype, drawn, not as_json, settings)
    written = under_torchrun(request, tp) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else local(request, tp)
    if written is None:
        return  # another rank reports
    if as_json:
        click.echo(json.dumps(report(request, written), indent=2))
    else:
        console = make_console(sys.stderr)
        console.print(paragraphs((Text(), memory(written.ranks), Text(speed(request, written)))))


def check_source(model: str) -> None:
    """Raises UsageError for what has no weights to write with."""
    if names_a_type(model):
        raise UsageError(f"{model!r} is a type without weights; give a folder with a checkpoint, or a model id")
    kind: Any = models.model_class(models.config_of(model))
    if not kind.can_generate():
        raise UsageError(f"a {kind.__name__} does not write text; give a causal or a sequence-to-sequence model")


def settings_of(max_new_tokens: int, do_sample: bool, sampling: dict[str, float | None]) -> dict[str, Any]:
    """Keyword arguments of `generate`. Raises UsageError for one that is wrong or would do nothing."""
    given = {name: value for name, value in sampling.items() if value is not None}
    if max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens must be at least 1, not {max_new_tokens}")
    if given and not do_sample:
        raise UsageError(f"--{next(iter(given)).replace('_', '-')} changes nothing without --do-sample; add it")
    given.pop("seed", None)
    return {"max_new_tokens": max_new_tokens, "do_sample": do_sample, **given}


def local(request: Request, tp: int | None) -> Written:
    """Write on ranks of this machine, started for it and ended after it."""
    if tp is None:
        raise UsageError("say on how many ranks of this machine with --tp N, or start them with torchrun")
    check_size(tp)
    if tp > MOST_RANKS:
        raise UsageError(f"--tp {tp} would start {tp} processes here; use at most {MOST_RANKS}, or torchrun")
    return run_ranks(write_on_rank, tp, request, timeout_s=TIMEOUT_S, limit_s=None, backend=None)[0]


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
