"""Training that is killed again and again, and goes on from its last checkpoint at another number of ranks: its losses are those
of the dense model, which nobody killed, in float64.

    python -m tests.checkpoint.soak --minutes 30 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import autotp
from autotp.errors import CheckpointError, RankError, RankLostError
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import FAMILIES

SIZES = (1, 2, 3, 4)
EVERY = 3  # steps from one checkpoint to the next
FAR = 1e-9  # of losses, relative
Made = Callable[[Any], torch.optim.Optimizer]
# What is trained, and by what: states like the parameter, and states of shapes of their own.
RUNS: dict[str, tuple[str, Made]] = {
    "llama, AdamW": ("llama", lambda p: torch.optim.AdamW(p, 1e-3, eps=1e-6)),
    "gpt2, Adafactor": ("gpt2", lambda p: torch.optim.Adafactor(p, 1e-2)),
    "phi3, SGD": ("phi3", lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, nesterov=True)),
    "gemma2, AdamW": ("gemma2", lambda p: torch.optim.AdamW(p, 1e-3, eps=1e-6, amsgrad=True)),
    "bloom, Adagrad": ("bloom", lambda p: torch.optim.Adagrad(p, 1e-2)),
}


class WrongError(Exception):
    """What must not happen."""


def begin(name: str, cut: Callable[[Any], Any]) -> tuple[Any, torch.optim.Optimizer]:
    family, make = RUNS[name]
    torch.manual_seed(0)
    model = cut(build_model(FAMILIES[family].config(), meta=False).double())
    return model, make(model.parameters())


def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> float:
    # Few batches, which can be learned: where nothing can, rounding alone grows a million times in a hundred steps.
    tokens = torch.randint(3, 250, (2, 11), generator=torch.Generator().manual_seed(number % 6))
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss)


def dense(name: str, steps: int) -> list[float]:
    """Runs in a process of its own: what is to be reached."""
    with Float64():
        model, optimizer = begin(name, lambda model: model)
        return [step(model, optimizer, number) for number in range(steps)]


def live(name: str, folder: Path, steps: int, victims: tuple[int, ...], after_s: float) -> None:
    """Runs on a rank: go on from the last checkpoint; victims are killed some seconds later, wherever they are then."""
    diary = (folder / "diary").open("a", encoding="utf-8") if dist.get_rank() == 0 else None

    def note(**entry: Any) -> None:
        if diary is not None:
            diary.write(json.dumps(entry) + "\n")
            diary.flush()

    with Float64():
        model, optimizer = begin(name, autotp.parallelize)
        state, others = autotp.TrainingState(model, optimizer), {"step": 0}
        fate = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL))
        fate.daemon = True
        if dist.get_rank() in victims:
            fate.start()
        with suppress(CheckpointError):  # there is none yet
            state.load(folder / "state", others)
        note(began=others["step"])
        for number in range(others["step"], steps):
            note(step=number, loss=step(model, optimizer, number))
            others["step"] = number + 1
            if others["step"] % EVERY == 0:
                state.save(folder / "state", others)
                note(saved=others["step"])
        fate.cancel()


@dataclass
class Account:
    """What has happened."""

    kills: int = 0
    finished: int = 0
    steps: int = 0
    repeated: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    furthest: float = 0.0

    def __str__(self) -> str:
        sizes = ", ".join(f"{count} at {size}" for size, count in sorted(self.sizes.items()))
        return (
            f"{self.finished} runs finished, {self.kills} killed lives; lives by ranks: {sizes}; {self.steps} steps,"
            f" {self.repeated} of them again; told as {dict(self.found)}; largest difference {self.furthest:.1e}"
        )


def check(diary: Path, expected: list[float], account: Account) -> None:
    """Compare what all lives have noted with what the dense model found."""
    saved, seen = 0, set[int]()
    for line in diary.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        saved = max(saved, entry.get("saved", 0))
        if entry.get("began", saved) < saved:
            raise WrongError(f"went on from step {entry['began']}, after step {saved} was saved")
        if "loss" in entry:
            number, true = entry["step"], expected[entry["step"]]
            account.steps += 1
            account.repeated += number in seen
            seen.add(number)
            account.furthest = max(account.furthest, abs(entry["loss"] - true) / abs(true))
    if account.kills and not account.repeated:
        print("no step was done twice: ranks were killed too soon or too late", flush=True)
    if seen != set(range(len(expected))):
        raise WrongError(f"steps {sorted(set(range(len(expected))) - seen)} were never done")


def soak(
    name: str,
    steps: int,
    chance: random.Random,
    account: Account,
    *,
    kills: int | None = None,
    end: float,
    longest_s: float,
) -> None:
    """One run to its end: with so many kills, or as many as there is time for. Raises WrongError."""
    losses = run_ranks(dense, 1, name, steps)[0]
    with tempfile.TemporaryDirectory(prefix="autotp-soak-") as home:
        while True:
            size, may_kill = chance.choice(SIZES), time.monotonic() < end and kills != 0
            victims = tuple(range(size)) if chance.random() < 0.2 else (chance.randrange(size),)
            account.sizes[size] += 1
            arguments = (name, Path(home), steps, victims if may_kill else (), chance.uniform(0.0, longest_s))
            try:
                run_ranks(live, size, *arguments)
                break
            except (RankError, RankLostError) as error:
                if not may_kill:
                    raise WrongError(f"nobody was killed, and a rank was lost: {error}") from error
                account.kills += 1
                account.found[type(error).__name__] += 1
                kills = None if kills is None else kills - 1
                print(f"{name}: {size} ranks, {len(victims)} of them killed after {arguments[-1]:.1f} s", flush=True)
        check(Path(home) / "diary", losses, account)
    account.finished += 1
    if account.furthest > FAR:
        raise WrongError(f"{name} is {account.furthest:.1e} from the dense run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=150, help="of each run")
    parser.add_argument("--kills", type=int, default=12, help="of each run, at most")
    parser.add_argument("--longest", type=float, default=15.0, help="seconds a rank lives that is to be killed")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    wanted = parser.parse_args()
    print(f"seed {wanted.seed}", flush=True)
    chance, account, number = random.Random(wanted.seed), Account(), 0
    end = time.monotonic() + 60 * wanted.minutes
    while time.monotonic() < end:
        name = [*RUNS][number % len(RUNS)]
        soak(name, wanted.steps, chance, account, kills=wanted.kills, end=end, longest_s=wanted.longest)
        number += 1
        print(account, flush=True)


if __name__ == "__main__":
    main()
