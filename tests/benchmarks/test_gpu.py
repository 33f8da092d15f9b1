"""The GPU benchmark where there is no GPU: it says so, and everything but CUDA graphs runs at sizes made for a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "gpu.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(FILE), *arguments], capture_output=True, text=True, env=environment, timeout=300
    )


@pytest.mark.sweep
def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert "no CUDA device" in done.stdout


@pytest.mark.sweep
def test_every_step_runs_eager_and_compiled() -> None:
    done = run("--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "quick start, ranks: 1" in done.stdout
    assert "the same 8 tokens" in done.stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert [row[1] for row in rows] == ["prefill", "decode", "training"]
    for _, _, dense, share, eager, graphed, compiled, both, _ in rows:
        assert float(dense) > float(share) > 0
        assert float(eager) > 0
        assert float(compiled) > 0
        assert (graphed, both) == ("-", "-")
