"""Runs in which something goes wrong, and what became of each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Told:
    """What a rank that is not the victim ended with, and how many seconds after the fault."""

    outcome: str
    text: str
    seconds: float


def run(folder: Path, fault: str, phase: str, way: str, size: int = 2, limit_s: float = 80.0) -> list[Told]:
    """Run the ranks by themselves, with no launcher that would end them."""
    store = dist.TCPStore(
        "127.0.0.1", 0, size + 1, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "tests.faults.rank",
                str(rank),
                str(size),
                str(store.port),
                folder,
                fault,
                phase,
                way,
            ],
            cwd=ROOT,
            env=settings,
            stderr=(folder / f"stderr-{rank}").open("w"),
        )
        for rank in range(size)
    ]
    end = time.monotonic() + limit_s
    try:
        for process in ranks[:-1]:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    began = folder / "began"
    start = float(began.read_text()) if began.exists() else float("nan")
    found = []
    for rank in range(size - 1):
        path = folder / f"told-{rank}.json"
        told = json.loads(path.read_text()) if path.exists() else {"outcome": "HANGS", "text": "", "at": time.time()}
        found.append(Told(told["outcome"], told["text"], told["at"] - start))
    return found


if __name__ == "__main__":
    import tempfile

    from .rank import FAULTS, PHASES

    wanted = sys.argv[1:]
    for fault in FAULTS:
        for phase in PHASES:
            for way in ("shared", "gloo"):
                name = f"{fault} | {phase} | {way}"
                if all(w in name for w in wanted):
                    with tempfile.TemporaryDirectory() as folder:
                        for told in run(Path(folder), fault, phase, way):
                            print(f"{name} | {told.outcome} | {told.seconds:.1f} | {told.text[:160]!r}", flush=True)
                            if "nan" in f"{told.seconds}" or os.environ.get("SHOW"):
                                print((Path(folder) / "stderr-1").read_text()[-600:])
