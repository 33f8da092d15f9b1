"""What one GPU can show of tensor parallelism over eight.

    python benchmarks/gpu.py

First the README's quick start, word for word, on a rank for each GPU; then a small model on a group of one, which must compute
what the dense one does. Then one rank's shard of 8B- and
70B-shaped Llama blocks at tp 8, in bf16 with sdpa: reading a prompt, writing a token with a static cache, and a training
step. The group is torch's fake one, so the time is a rank's own work without the wire. It stands beside the dense eager
block divided by 8, which no split can beat on compute alone, but compilation and CUDA graphs can.

Several blocks run in turn, as in a model, so that the weights of one do not wait in the cache for the next call.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import transformers
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

sys.path.insert(0, str(Path(__file__).parents[1]))

import autotp
from autotp.checkpoint.full import state_of

ROOT = Path(__file__).parents[1]
TP = 8
MODES = ("eager", "graphed", "compiled", "compiled, graphed")

Step: TypeAlias = Callable[[], Any]


@dataclass(frozen=True)
class Shape:
    """The sizes of a block."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int


@dataclass(frozen=True)
class Work:
    """How much a step does, through how many blocks, and how often it is timed. `backend` is what compiles."""

    blocks: int
    prompt: int
    batch: int
    past: int
    turns: int
    calls: int
    backend: str


SHAPES = (Shape("8B", 4096, 14336, 32, 8), Shape("70B", 8192, 28672, 64, 8))
WORK = Work(blocks=4, prompt=2048, batch=16, past=2048, turns=7, calls=10, backend="inductor")
# For trying this file where there is no GPU.
SMALL_SHAPES = (Shape("small", 64, 128, 8, 2),)
SMALL_WORK = Work(blocks=2, prompt=16, batch=2, past=16, turns=2, calls=1, backend="aot_eager")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=argparse.SUPPRESS)
    device = torch.device(parser.parse_args().device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("There is no CUDA device here, so there is nothing to measure.")
        return 0
    if device.type == "cpu":
        torch.set_num_threads(1)
    shapes, work = (SHAPES, WORK) if device.type == "cuda" else (SMALL_SHAPES, SMALL_WORK)
    print(quick_start(device))
    print(group_of_one(device))
    table, failures = Table(title=title(device, work), title_justify="left"), dict[str, str]()
    for column in ("block", "step", "dense eager", f"over {TP}", *MODES, "best is"):
        table.add_column(column, justify="left" if column in ("block", "step") else "right")
    with fake_group(TP):
        for shape in shapes:
            for row in measure_shape(shape, work, device, failures):
                table.add_row(*row)
    Console(width=140).print(table)
    for what, why in failures.items():
        print(f"{what} fails: {why}")
    return 1 if failures else 0


def title(device: torch.device, work: Work) -> str:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, sizes that only try this program"
    return (
        f"{where}, torch {torch.__version__}, transformers {transformers.__version__}: milliseconds a block on one rank of "
        f"{TP}, without the wire; prompt 1 x {work.prompt}, token {work.batch} x 1 after {work.past}"
    )


def quick_start(device: torch.device) -> str:
    """The first example of the README under torchrun, on a small checkpoint. Raises SystemExit if it fails."""
    ranks = torch.accelerator.device_count() if device.type == "cuda" else 1
    found = re.search(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "quickstart.py").write_text(found[1])
        build(Shape("", 256, 512, 8, 4), 2, device).save_pretrained(Path(folder, "checkpoint"))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": paths, "AUTOTP_CACHE": folder}
        done = subprocess.run([*launcher, "quickstart.py"], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the quick start fails on {ranks} ranks:\n{done.stderr[-4000:]}")
    return f"quick start, ranks: {ranks}"


def group_of_one(device: torch.device) -> str:
    """A small model under NCCL with one rank. Raises SystemExit if it differs from the dense one."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    model = build(Shape("", 256, 512, 8, 4), 2, device).eval().requires_grad_(False)
    ids = torch.randint(3, model.config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0)).to(device)
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with group(backend, dist.HashStore(), 1):
        expected, tokens = model(ids).logits, model.generate(ids, **settings)
        autotp.parallelize(model)
        found, written = model(ids).logits, model.generate(ids, **settings)
        value = torch.ones(4, device=device)
        summed = state_of(model).ranks._all_reduce(value, (), "sum")
    if not (torch.equal(tokens, written) and torch.allclose(found, expected, rtol=0.02, atol=0.02)):
        sys.exit(f"on a group of one under {backend} the parallel model differs from the dense one")
    if not torch.equal(summed, value):
        sys.exit(f"an all-reduce on a group of one under {backend} changed the value")
    return f"group of one under {backend}: logits within bf16 and the same {written.shape[1] - ids.shape[1]} tokens"


@contextmanager
def group(backend: str, store: Any, size: int) -> Iterator[None]:
    dist.init_process_group(backend, store=store, rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def fake_group(size: int) -> Any:
    """A process group whose collectives return at once."""
    return group("fake", FakeStore(), size)


def build(shape: Shape, layers: int, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        num_hidden_layers=layers,
        vocab_size=1024,
        max_position_embeddings=8192,
    )
    config._attn_implementation = "sdpa"
    with device:
        return LlamaForCausalLM(config).to(torch.bfloat16)


def measure_shape(shape: Shape, work: Work, device: torch.device, failures: dict[str, str]) -> Iterator[list[str]]:
    """One row a step: the dense block, then the same model cut, in every mode."""
    model = build(shape, work.blocks, device)
    dense = {name: milliseconds(step, work, device) for name, step in steps(model, work, device)}
    autotp.parallelize(model)
    times: dict[str, dict[str, float]] = {name: {} for name in dense}
    for compiled in (False, True):
        for name, step in steps(model, work, device, compiled):
            for graphed in (False, True) if device.type == "cuda" else (False,):
                mode = MODES[2 * compiled + graphed]
                try:
                    times[name][mode] = milliseconds(in_graph(step) if graphed else step, work, device)
                except Exception as error:
                    failures[f"{shape.name}, {name}, {mode}"] = f"{type(error).__name__}: {str(error).strip()[:200]}"
    for name, whole in dense.items():
        cells = [f"{times[name][mode]:.3f}" if mode in times[name] else "-" for mode in MODES]
        best = f"{whole / TP / min(times[name].values()):.2f} of ideal" if times[name] else "-"
        yield [shape.name, name, f"{whole:.3f}", f"{whole / TP:.3f}", *cells, best]


def steps(model: nn.Module, work: Work, device: torch.device, compiled: bool = False) -> Iterator[tuple[str, Step]]:
    """What is timed, by name. Each is made when it is reached, and its memory is free when the next one is."""
    hidden = model.config.hidden_size
    prompt = torch.randn(1, work.prompt, hidden, device=device, dtype=torch.bfloat16)
    rotary = model.get_submodule("model.rotary_emb")
    blocks = list(model.get_submodule("model.layers").children())

    def places(first: int, length: int, batch: int) -> dict[str, Any]:
        positions = torch.arange(first, first + length, device=device).expand(batch, -1)
        return {"position_ids": positions, "position_embeddings": rotary(prompt, positions)}

    def run_blocks(value: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        for block in blocks:
            value = block(value, **given)
        return value

    torch.compiler.reset()
    run = torch.compile(run_blocks, backend=work.backend) if compiled else run_blocks

    reading = places(0, work.prompt, 1)
    model.eval()
    yield "prefill", without_gradients(lambda: run(prompt, reading))
    cache = filled_cache(model, run_blocks, places, work, device)
    yield "decode", without_gradients(decode_step(model, cache, run, places, work, device))
    model.train()
    yield "training", training_step(model, lambda value: run(value, reading), prompt)


def without_gradients(step: Step) -> Step:
    def quiet() -> Any:
        with torch.no_grad():
            return step()

    return quiet


Run: TypeAlias = Callable[[torch.Tensor, dict[str, Any]], torch.Tensor]
Places: TypeAlias = Callable[[int, int, int], dict[str, Any]]


def filled_cache(model: nn.Module, run: Run, places: Places, work: Work, device: torch.device) -> StaticCache:
    """A static cache after a prompt."""
    cache = StaticCache(config=model.config, max_cache_len=work.past + 64)
    values = torch.randn(work.batch, work.past, model.config.hidden_size, device=device, dtype=torch.bfloat16)
    given = places(0, work.past, work.batch)
    with torch.no_grad():
        run(values, {**given, "past_key_values": cache, "attention_mask": mask_of(work, device, 0, work.past)})
    return cache


def decode_step(
    model: nn.Module, cache: StaticCache, run: Run, places: Places, work: Work, device: torch.device
) -> Step:
    """One token for every sequence of a batch. The cache forgets it again before the next call."""
    token = torch.randn(work.batch, 1, model.config.hidden_size, device=device, dtype=torch.bfloat16)
    given = places(work.past, 1, work.batch)
    given |= {"past_key_values": cache, "attention_mask": mask_of(work, device, work.past, 1)}
    lengths = [layer.cumulative_length for layer in cache.layers]

    def step() -> torch.Tensor:
        for length in lengths:
            length.fill_(work.past)
        return run(token, given)

    return step


def mask_of(work: Work, device: torch.device, first: int, count: int) -> torch.Tensor:
    """Which of the cache's places some queries see."""
    queries = torch.arange(first, first + count, device=device)
    seen = torch.arange(work.past + 64, device=device) <= queries[:, None]
    return seen.expand(work.batch, 1, -1, -1)


def training_step(model: nn.Module, run: Callable[[torch.Tensor], torch.Tensor], prompt: torch.Tensor) -> Step:
    """Forward and backward, input gradients included as for any block but the first; no optimizer."""
    value = prompt.detach().clone().requires_grad_()

    def step() -> None:
        value.grad = None
        for parameter in model.parameters():
            parameter.grad = None
        run(value).float().square().mean().backward()

    return step


def in_graph(step: Step) -> Step:
    """A CUDA graph of a step."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return captured.replay


def milliseconds(step: Step, work: Work, device: torch.device) -> float:
    """The median time of a step for one block."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    times = []
    for _ in range(work.turns):
        wait()
        start = time.perf_counter()
        for _ in range(work.calls):
            step()
        wait()
        times.append((time.perf_counter() - start) / work.calls)
    return statistics.median(times) * 1e3 / work.blocks


if __name__ == "__main__":
    sys.exit(main())
