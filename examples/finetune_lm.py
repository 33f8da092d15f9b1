"""The small model of `train_tiny_lm.py` fine-tuned on other text: dense, on 2 ranks, and on 2 x 2, whose loss curves are one.

    python examples/finetune_lm.py              trains tiny_lm/ first if it is not there; writes finetune.png
    python examples/finetune_lm.py --steps 40 --picture other.png

Every rank calls `autotp.parallelize` and then trains as anybody does. Drawing needs matplotlib: `pip install autotp[examples]`.
"""

from __future__ import annotations

import argparse
import builtins
import importlib.util
import inspect
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the other example

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer, logging

import autotp
from autotp.runtime.groups.launch import run_ranks
from examples.train_tiny_lm import train

DENSE, BATCH, LENGTH = (1, 1), 8, 96
MESHES = {"dense": DENSE, "tp 2": (1, 2), "dp 2 x tp 2": (2, 2)}


@dataclass(frozen=True)
class Tuning:
    """What to tune and for how long. The same seed gives the same batches everywhere."""

    folder: Path
    steps: int
    rate: float = 1e-3


def read_text() -> str:
    """The documentation of everything that Python has built in."""
    found = [inspect.getdoc(value) or "" for _, value in sorted(vars(builtins).items())]
    parts = [inspect.getdoc(part) or "" for kind in (str, dict, list, bytes, int, set) for part in vars(kind).values()]
    return "\n\n".join([*found, *parts])


def batches(tuning: Tuning) -> Iterator[torch.Tensor]:
    """Pieces from random places of the text, (batch, length)."""
    tokens = torch.tensor(AutoTokenizer.from_pretrained(tuning.folder)(read_text()).input_ids)
    numbers = torch.Generator().manual_seed(0)
    for _ in range(tuning.steps):
        starts = torch.randint(0, len(tokens) - LENGTH, (BATCH, 1), generator=numbers)
        yield tokens[starts + torch.arange(LENGTH)]


def tune(tuning: Tuning, replicas: int, tp: int) -> list[float]:
    """The loss of every step on this rank's share of the batch. Runs on every rank; on one rank, the dense model."""
    logging.disable_progress_bar()
    rows = slice(0, BATCH)
    model: Any = AutoModelForCausalLM.from_pretrained(tuning.folder).train()
    if (replicas, tp) != DENSE:
        mesh = init_device_mesh("cpu", (replicas, tp), mesh_dim_names=("dp", "tp"))
        model = autotp.parallelize(model, mesh=mesh)
        if replicas > 1:
            for block in model.model.layers:
                fully_shard(block, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])
            first = mesh["dp"].get_local_rank() * BATCH // replicas
            rows = slice(first, first + BATCH // replicas)
    optimizer = torch.optim.AdamW(model.parameters(), lr=tuning.rate)
    losses = []
    for ids in batches(tuning):
        loss = model(input_ids=ids[rows], labels=ids[rows], use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def curves(tuning: Tuning, meshes: Mapping[str, tuple[int, int]]) -> dict[str, list[float]]:
    """The mean loss over all ranks, at every step and for every mesh."""
    found = {}
    for name, (replicas, tp) in meshes.items():
        start = time.perf_counter()
        runs = run_ranks(tune, replicas * tp, tuning, replicas, tp)
        found[name] = [sum(losses) / len(losses) for losses in zip(*runs, strict=True)]
        print(
            f"{name:12} loss {found[name][0]:.4f} -> {found[name][-1]:.4f}   {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    return found


def gap(losses: Sequence[float], dense: Sequence[float]) -> list[float]:
    """The relative difference of every loss."""
    return [abs(own - true) / true for own, true in zip(losses, dense, strict=True)]


def draw(found: Mapping[str, Sequence[float]], picture: Path) -> None:
    """The curves, and below them how far they are from the dense one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 5.5), height_ratios=(2, 1))
    looks = {"linewidth": 6, "color": "0.8"}, {"linewidth": 2, "color": "C0"}, {"linestyle": "--", "color": "black"}
    for (name, losses), look in zip(found.items(), looks, strict=True):
        above.plot(losses, label=name, **look)
        if name != "dense":
            below.plot(gap(losses, found["dense"]), ".", color=look["color"])
    above.set_ylabel("loss, nats a token")
    above.legend()
    below.set_ylabel("relative difference")
    below.set_ylim(bottom=0)
    below.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune the small language model on one, two and four ranks.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("tiny_lm"), help="the model, trained if not there")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--picture", type=Path, default=Path("finetune.png"))
    given = parser.parse_args()
    if not (given.folder / "config.json").is_file():
        print(f"training {given.folder}")
        train(given.folder)
    found = curves(Tuning(given.folder, given.steps), MESHES)
    for name, losses in found.items():
        print(f"{name:12} largest relative difference {max(gap(losses, found['dense'])):.1e}")
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed")
        return
    draw(found, given.picture)
    print(f"drawn in {given.picture}")


if __name__ == "__main__":
    main()
