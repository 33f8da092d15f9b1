"""How long commands take that need no model: help, a wrong option, and plans of known types, planned here or not.

    python benchmarks/cli.py

Each runs in a fresh process, with nothing kept from before unless it says so. Shown is the least of several runs, in seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

RUNS = 4
ROOT = Path(__file__).parents[1]
COMMANDS = (
    ("--help",),
    ("--version",),
    ("plan", "gpt2", "--tp", "two"),
    ("plan", "lama", "--tp", "2"),
    ("plan", "gpt2", "--tp", "2"),
    ("plan", "llama", "--compare", "2,4,8"),
    ("plan", "gpt2", "--tp", "2", "--again"),
    ("plan", "gpt2", "--tp", "3"),
)


def seconds(arguments: tuple[str, ...], cache: str) -> float:
    """How long one run of a command takes."""
    environment = {**os.environ, "AUTOTP_CACHE": cache, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "autotp", *arguments], env=environment, capture_output=True, check=False)
    return time.perf_counter() - start


def main() -> None:
    table = Table("autotp", "nothing kept, s", "asked before, s", box=None)
    for arguments in COMMANDS:
        first, again = [], []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as cache:
                first.append(seconds(arguments, cache))
                again.append(seconds(arguments, cache))
        table.add_row(" ".join(arguments), f"{min(first):.2f}", f"{min(again):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
