"""Runs in which something goes wrong, and what became of each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from .rank import BEGAN, LOST

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Told:
    """What a rank that is not the victim ended with, and how many seconds after the fault."""

    outcome: str
    text: str
    seconds: float


def run(folder: Path, fault: str, phase: str, way: str, size: int = 2, limit_s: float = 80.0) -> list[Told]:
    """Run the ranks by themselves, with no launcher that would end them."""
    store: dist.TCPStore | None = dist.TCPStore(
        "127.0.0.1", 0, size + 1, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    port = store.port
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.rank"]

    def launched(rank: int) -> subprocess.Popen[bytes]:
        given = [str(rank), str(size), str(port), str(folder), fault, phase, way]
        with (folder / f"stderr-{rank}").open("w") as said:
            return subprocess.Popen(command + given, cwd=ROOT, env=settings, stderr=said)

    ranks = [launched(rank) for rank in range(size)]
    began, end = folder / BEGAN, time.monotonic() + limit_s
    try:
        while time.monotonic() < end and any(process.poll() is None for process in ranks[:-1]):
            time.sleep(0.02)
            if fault == "store lost" and store is not None and began.exists():
                store = None
                (folder / LOST).touch()
    finally:
        for process in ranks:
            process.kill()
            process.wait()
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
