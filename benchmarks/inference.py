"""How fast a parallel Llama reads a prompt and writes tokens on two ranks of this machine, beside other ways to cut it.

    python benchmarks/inference.py

Two processes of one thread, float32, random weights: dense on one of them, a split written by hand, transformers' own
tensor parallelism, DeepSpeed AutoTP (both where installed), and autotp. All are measured in one run, in turns, since the
machine does other things too; shown are medians over the turns with the least in brackets, and the medians of the ratios
within a turn. Time in collectives, which includes waiting for the other rank, comes from separate turns.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed import _functional_collectives as functional

sys.path.insert(0, str(Path(__file__).parents[1]))

import autotp
from autotp.checkpoint.full import state_of
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.processes import ProcessRanks
from autotp.runtime.transport.shared import HostGroup
from benchmarks.peers import libraries, megatron

RANKS, BATCH, PROMPT, STEPS = 2, 4, 128, 32
SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 1024,
}
TOLERANCE = 1e-4  # of the largest logit, in float32
OURS, DENSE = "autotp", "dense"
PHASES = ("prefill", "decode")


@dataclass
class Contestant:
    """One way to run the model. `alone` runs on the first rank only, while the others wait."""

    name: str
    model: nn.Module | None
    alone: bool = False
    missing: str = ""
    logits: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    waited: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="how often each way is measured")
    parser.add_argument("--small", action="store_true", help="a model that takes no time, to try the benchmark itself")
    parser.add_argument("--compiled", action="store_true", help="also the dense model and autotp's under torch.compile")
    options = parser.parse_args()
    shape = {**SHAPE, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256} if options.small else SHAPE
    with tempfile.TemporaryDirectory() as folder:
        contestants = run_ranks(
            compare, RANKS, shape, options.turns, folder, options.compiled, timeout_s=600, limit_s=3600
        )[0]
    table, agree = report(contestants)
    Console(width=160).print(table)
    if not agree:
        sys.exit("the ways to run the model do not agree")


def compare(shape: dict[str, int], turns: int, folder: str, compiled: bool) -> list[Contestant]:
    """Runs on a rank; the first returns what it measured."""
    contestants = make_contestants(dense_model(shape), folder)
    if compiled:
        same = [each for each in contestants if each.name in (DENSE, OURS)]
        contestants += [Contestant(f"{each.name}, compiled", torch.compile(each.model), each.alone) for each in same]
    prompt = torch.randint(3, shape["vocab_size"], (BATCH, PROMPT), generator=torch.Generator().manual_seed(1))
    running = [each for each in contestants if each.model is not None]
    for each in running:
        take_turn(each, prompt, {phase: [] for phase in PHASES})  # warm
        each.logits, each.tokens = written(each, prompt)
    for turn in range(turns):
        for each in running[:: 1 if turn % 2 else -1]:  # nobody always follows the same one
            take_turn(each, prompt, each.seconds)
    for _ in range(2):
        for each in running:
            take_turn(each, prompt, each.waited, clock=Clock())
    for each in running:
        each.model = nn.Identity()  # the process that prints needs none
    return contestants if dist.get_rank() == 0 else []


def dense_model(shape: dict[str, int]) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**shape)).eval().requires_grad_(False)


def make_contestants(dense: nn.Module, folder: str) -> list[Contestant]:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        dense.save_pretrained(folder)
    dist.barrier()
    ours = autotp.parallelize(copy.deepcopy(dense))
    split = functools.partial(megatron.split, rank=rank, size=size)
    by_hand = split(copy.deepcopy(dense), reduce=megatron.gloo_reduce, gather=megatron.gloo_gather)
    group = host_group(state_of(ours).ranks)
    if group is not None:
        shared = split(
            copy.deepcopy(dense),
            reduce=lambda v: group.all_reduce(v),  # looked up at every call, so that the clock can be put around it
            gather=lambda v: torch.cat([*group.all_gather(v)], -1),
        )
    return [
        Contestant(DENSE, dense, alone=True),
        Contestant("by hand, gloo", by_hand),
        Contestant("by hand, shared memory", None if group is None else shared, missing="no shared memory"),
        optional("transformers", lambda: libraries.transformers_tp(folder)),
        optional("DeepSpeed AutoTP", lambda: libraries.deepspeed_tp(copy.deepcopy(dense))),
        Contestant(OURS, ours),
    ]


def host_group(ranks: ProcessRanks) -> HostGroup | None:
    """The group that the whole world shares memory in."""
    from autotp.axes.layout import Factor

    return ranks.host_group((Factor(ranks.size, 1),), torch.device("cpu"))


def optional(name: str, make: Callable[[], nn.Module]) -> Contestant:
    try:
        return Contestant(name, make().eval())
    except libraries.Absent as absent:
        return Contestant(name, None, missing=str(absent))


@torch.no_grad()
def written(contestant: Contestant, prompt: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The logits of the prompt's last position, and greedy tokens."""
    if contestant.alone and dist.get_rank() > 0:
        return None, None
    model = contestant.model
    assert model is not None
    result = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
    return result.logits, decode(model, result)


def decode(model: nn.Module, result: Any) -> torch.Tensor:
    """Write `STEPS` tokens after a prompt that was read."""
    tokens = []
    for _ in range(STEPS):
        token = result.logits[:, -1:].argmax(-1)
        tokens.append(token)
        result = model(input_ids=token, past_key_values=result.past_key_values, use_cache=True)
    return torch.cat(tokens, 1)


@torch.no_grad()
def take_turn(
    contestant: Contestant, prompt: torch.Tensor, into: dict[str, list[float]], clock: Clock | None = None
) -> None:
    """Measure reading the prompt and writing tokens once: seconds, or seconds in collectives if there is a clock."""
    dist.barrier()
    model = contestant.model
    if not (contestant.alone and dist.get_rank() > 0):
        assert model is not None
        with contextlib.nullcontext() if clock is None else clock.running():
            start = time.perf_counter()
            result = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
            read, waited = time.perf_counter(), 0.0 if clock is None else clock.seconds
            decode(model, result)
            end = time.perf_counter()
        times = (read - start, end - read) if clock is None else (waited, clock.seconds - waited)
        for phase, seconds in zip(PHASES, times, strict=True):
            into[phase].append(seconds)
    dist.barrier()


class Clock:
    """Seconds spent in the collectives of whoever runs."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        entries = [
            *((HostGroup, name) for name in ("all_reduce", "all_gather")),
            *((dist, name) for name in ("all_reduce", "all_gather", "all_gather_into_tensor")),
            *((functional, name) for name in ("all_reduce", "all_gather_tensor", "wait_tensor")),
            (functional.AsyncCollectiveTensor, "trigger_wait"),
        ]
        if "deepspeed" in sys.modules:
            entries.append((sys.modules["deepspeed"].comm, "inference_all_reduce"))
            entries.append((sys.modules["deepspeed"].comm, "all_gather_into_tensor"))
        before = [(owner, name, getattr(owner, name)) for owner, name in entries]
        for owner, name, function in before:
            setattr(owner, name, self._timed(function))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - start

        return timed


def report(contestants: list[Contestant]) -> tuple[Table, bool]:
    """What was measured, and whether all of them compute the same."""
    dense = contestants[0]
    ours = next(each for each in contestants if each.name == OURS)
    assert dense.logits is not None
    assert dense.tokens is not None
    table = Table(
        title=f"{RANKS} ranks x 1 thread, prefill {BATCH} x {PROMPT}, {STEPS} decode steps at batch {BATCH}; seconds, "
        f"medians (and least) of {len(dense.seconds['prefill'])} turns",
        title_justify="left",
    )
    table.add_column("")
    for phase in PHASES:
        for title in (phase, "in collectives", "of autotp's"):
            table.add_column(title, justify="right")
    table.add_column("logits differ by")
    table.add_column("tokens")
    agree = True
    for each in contestants:
        if each.model is None:
            table.add_row(each.name, each.missing)
            continue
        assert each.logits is not None
        assert each.tokens is not None
        cells = []
        for phase in PHASES:
            ratios = [theirs / mine for theirs, mine in zip(each.seconds[phase], ours.seconds[phase], strict=True)]
            middle = map(statistics.median, (each.seconds[phase], each.waited[phase], ratios))
            cells += [
                f"{next(middle):.3f} ({min(each.seconds[phase]):.3f})",
                f"{next(middle):.3f}",
                f"{next(middle):.2f}",
            ]
        difference = float((each.logits - dense.logits).abs().max() / dense.logits.abs().max())
        same = torch.equal(each.tokens, dense.tokens)
        agree = agree and same and difference < TOLERANCE
        table.add_row(each.name, *cells, f"{difference:.1e}", "equal" if same else "different")
    return table, agree


if __name__ == "__main__":
    main()
