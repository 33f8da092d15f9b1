"""One rank of a run in which something goes wrong: it does every phase of a training twice, and in the second round a fault
happens on the last rank at the first collective of one phase.

    python -m tests.faults.rank RANK SIZE PORT FOLDER FAULT PHASE WAY

What became of the rank is written into the folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import autotp
from autotp.huggingface.models import build_model
from autotp.runtime.groups import processes
from autotp.runtime.transport import host, shared
from tests.families import WRITERS

SLOW_S = 6.0
BEGAN = "began"  # a file with the time of the fault
LOST = "lost"  # a file that says that the store is closed
ALIVE_S = 90.0  # how long a rank that caught its error does nothing
# Where something is sent, below everything that tells the others.
SENDS = (
    (shared.HostGroup, "_exchange"),
    (shared.HostGroup, "_chunks"),
    *((dist, name) for name in ("all_reduce", "all_gather", "reduce_scatter_tensor")),
    (processes, "exchange_by_store"),
)


def raise_error(_: Path) -> None:
    raise RuntimeError("the victim's own error")


def raise_out_of_memory(_: Path) -> None:
    raise torch.OutOfMemoryError("the victim has no memory left")


def send_itself(which: int) -> Callable[[Path], None]:
    def end(_: Path) -> None:
        os.kill(os.getpid(), which)
        time.sleep(1)  # in which Python takes the signal

    return end


def await_loss(folder: Path) -> None:
    """Until who started this rank has closed the store."""
    while not (folder / LOST).exists():
        time.sleep(0.02)


# What happens on the victim; it is given the folder of the run.
FAULTS: dict[str, Callable[[Path], None]] = {
    "killed": send_itself(signal.SIGKILL),
    "interrupted": send_itself(signal.SIGINT),
    "terminated": send_itself(signal.SIGTERM),
    "error": raise_error,
    "error, and lives on": raise_error,
    "out of memory": raise_out_of_memory,
    "interrupted, and lives on": send_itself(signal.SIGINT),
    "slow": lambda _: time.sleep(SLOW_S),
    "store lost": await_loss,
}

# What the others are told of a fault.
ENDED = "has ended while others waited for it"
REASONS = {
    "killed": ENDED,
    "terminated": ENDED,
    "error": "the victim's own error",
    "error, and lives on": "the victim's own error",
    "out of memory": "the victim has no memory left",
    "interrupted": "KeyboardInterrupt",
    "interrupted, and lives on": "KeyboardInterrupt",
    "store lost": "the store that the ranks met at is lost",
}


class Victim:
    """Lets the fault happen when it is armed and this rank is about to send."""

    def __init__(self, fault: str, folder: Path) -> None:
        self.fault, self.folder, self.armed = fault, folder, False
        for place, name in SENDS:
            setattr(place, name, self.around(getattr(place, name)))

    def around(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def sending(*args: Any, **kwargs: Any) -> Any:
            if self.armed:
                self.armed = False
                (self.folder / BEGAN).write_text(repr(time.time()), encoding="utf-8")
                FAULTS[self.fault](self.folder)
            return send(*args, **kwargs)

        return sending


class Training:
    """Every phase as a function; each leaves what the next one needs."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model: Any = autotp.parallelize(build_model(WRITERS["llama"].config(), meta=False))
        self.optimizer = torch.optim.Adafactor(self.model.parameters())  # it looks across elements
        self.state = autotp.TrainingState(self.model, self.optimizer)
        self.ids = torch.arange(3, 27).view(2, 12)
        self.loss = torch.tensor(0.0)

    def forward(self) -> None:
        self.loss = self.model(self.ids, labels=self.ids, use_cache=False).loss

    def backward(self) -> None:
        self.loss.backward()

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def optimizer_step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self) -> None:
        autotp.save_pretrained(self.model, self.folder / "model")

    def save_training(self) -> None:
        self.state.save(self.folder / "training")

    def load_training(self) -> None:
        self.state.load(self.folder / "training")

    def load(self) -> None:
        autotp.from_pretrained(self.folder / "model")

    def generate(self) -> None:
        self.model.generate(self.ids, max_new_tokens=4, do_sample=False)


STEP = ("forward", "backward", "clip", "optimizer_step")
# What is done in both rounds, by the phase of the fault: no more than is needed.
PHASES = {
    **dict.fromkeys(STEP, STEP),
    "save": ("save",),
    "save_training": (*STEP, "save_training"),
    "load_training": (*STEP, "save_training", "load_training"),
    "load": ("save", "load"),
    "generate": ("generate",),
}


def play(rank: int, folder: Path, fault: str, phase: str) -> None:
    victim = Victim(fault, folder) if rank == dist.get_world_size() - 1 else None
    training = Training(folder)
    for turn in range(2):
        for name in PHASES[phase]:
            if victim is not None and turn == 1 and name == phase:
                victim.armed = True
            try:
                getattr(training, name)()
            except BaseException:
                if not fault.endswith("lives on") or victim is None:
                    raise
                time.sleep(ALIVE_S)
            if name == phase and turn == 1:
                assert victim is None or not victim.armed, f"nothing was sent in {name}"


def main() -> None:
    rank, size, port, folder, fault, phase, way = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    if way == "gloo":
        host.KEEPS_ORDER = False  # then nothing goes through shared memory
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", int(port), int(size) + 1, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(size), timeout=timedelta(seconds=60))
    home = Path(folder)
    (home / f"ready-{rank}").touch()
    try:
        play(int(rank), home, fault, phase)
        told = {"outcome": "finished", "text": ""}
    except BaseException as error:
        told = {"outcome": type(error).__name__, "text": str(error)}
        raise
    finally:
        (home / f"told-{rank}.json").write_text(json.dumps({**told, "at": time.time()}), encoding="utf-8")


if __name__ == "__main__":
    main()
