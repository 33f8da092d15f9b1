"""Runs are equal to the bit, from one process to the next, where somebody asks for that: whatever the clock said in each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(product: int, *how: str) -> list[dict[str, str]]:
    """What each rank computes in a fresh process in which one of the products is the fastest; text has another hash in each."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(product + 1)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.runtime.repeat", str(product), *how]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert not done.returncode, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("how", [(), ("compiled",)], ids=["", "compiled"])
def test_two_processes_compute_the_same_bits(how: tuple[str, ...]) -> None:
    one, other = run(0, *how), run(1, *how)
    assert one[0] == one[1]  # what ranks return is equal between them, whatever was favoured
    assert {name for name in one[0] if one[0][name] != other[0][name]} == {"neither"}  # that was there to be found
