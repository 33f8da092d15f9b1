"""How long two ranks take from a checkpoint to the first token, to 32 tokens, and to the end of the first training step.

    python benchmarks/start.py

Every start happens in fresh processes, which have imported what either way needs; autotp for the first time, autotp with what
the first time has kept on disk, transformers' own tensor parallelism, and DeepSpeed AutoTP (where it is installed) take turns.
Times are seconds of the slower rank since the checkpoint began to be loaded; shown are medians, and the medians of the ratios
to transformers within a turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks.inference import SHAPE
from benchmarks.peers import libraries

RANKS, RUNS, BATCH, PROMPT, TOKENS = 2, 3, 4, 128, 32
FIRST, AGAIN, THEIRS, DEEPSPEED = "autotp, the first time", "autotp, again", "transformers", "DeepSpeed"
WAYS = (FIRST, AGAIN, THEIRS, DEEPSPEED)
POINTS = ("first token", f"{TOKENS} tokens", "first step")


def write_checkpoint(folder: Path) -> None:
    """A Llama of the benchmarks' shape with random weights."""
    from transformers import AutoConfig

    from autotp.huggingface.models import build_model

    build_model(AutoConfig.for_model("llama", **SHAPE), meta=False).save_pretrained(folder)


def start(folder: Path, way: str, kept: Path, trains: bool) -> dict[str, float] | None:
    """Seconds to each point on this rank; None where a library is missing."""
    import transformers
    from transformers import LlamaForCausalLM

    import autotp.api

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    libraries.act_as_launched()
    os.environ["AUTOTP_CACHE"] = str(kept)
    load: dict[str, Callable[[], Any]] = {
        FIRST: lambda: autotp.from_pretrained(folder),
        AGAIN: lambda: autotp.from_pretrained(folder),
        THEIRS: lambda: libraries.transformers_tp(str(folder)),
        DEEPSPEED: lambda: (libraries.deepspeed_tp_to_train if trains else libraries.deepspeed_tp)(
            LlamaForCausalLM.from_pretrained(folder)
        ),
    }
    ids = torch.arange(BATCH * PROMPT).reshape(BATCH, PROMPT) % 1000
    dist.barrier()
    begun = time.perf_counter()
    try:
        model = load[way]()
    except libraries.Absent:
        return None
    return _train(model, ids, begun) if trains else _write(model, ids, begun)


def _write(model: Any, ids: torch.Tensor, begun: float) -> dict[str, float]:
    model.eval()
    times = {}
    for count in (1, TOKENS):
        model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
        times[count] = time.perf_counter() - begun
    # The first token is written a second time.
    return {POINTS[0]: times[1], POINTS[1]: times[TOKENS]}


def _train(model: Any, ids: torch.Tensor, begun: float) -> dict[str, float]:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    return {POINTS[2]: time.perf_counter() - begun}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    runs = parser.parse_args().runs
    from autotp.runtime.groups.launch import run_ranks

    found: dict[str, dict[str, list[float]]] = {way: {point: [] for point in POINTS} for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "checkpoint"
        run_ranks(write_checkpoint, 1, folder)
        for number in range(runs):
            for way in WAYS:
                for trains in (False, True):
                    kept = Path(temporary) / f"kept-{number}-{trains}"
                    ranks = run_ranks(start, RANKS, folder, way, kept, trains)
                    for point in ranks[0] or ():
                        found[way][point].append(max(rank[point] for rank in ranks))
    report(found)


def report(found: dict[str, dict[str, list[float]]]) -> None:
    """Print the table."""
    print(f"{'seconds to':<26}" + "".join(f"{point:>13}{'ratio':>7}" for point in POINTS))
    for way, points in found.items():
        if not points[POINTS[0]]:
            print(f"{way:<26} is not installed")
            continue
        cells = ""
        for point, seconds in points.items():
            ratio = statistics.median(a / b for a, b in zip(seconds, found[THEIRS][point], strict=True))
            cells += f"{statistics.median(seconds):>13.2f}{ratio:>7.2f}"
        print(f"{way:<26}{cells}")


if __name__ == "__main__":
    main()
