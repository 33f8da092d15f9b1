"""Long work says what it does on a terminal's standard error, of the first rank; a pipe gets nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

WORK = """
import torch, autotp
from torch import nn
autotp.verify(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)), 2, example=torch.ones(3, 8))
"""


def said(code: str, **environment: str) -> str:
    """What a program says on standard error that is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "COLUMNS": "100",
            "TERM": "xterm",
            **environment,
        },
    )
    os.close(theirs)
    found = b""
    try:
        while part := os.read(ours, 4096):
            found += part
    except OSError:  # Linux says so of a terminal that nobody writes to any more
        pass
    os.close(ours)
    assert process.wait(120) == 0, found.decode()
    return found.decode()


def test_verify_says_what_it_does_and_cleans_up() -> None:
    lines = said(WORK).split("\r")
    comparing = "\x1b[2Kautotp: comparing 2 simulated ranks with the dense model"
    assert lines[0] == "\x1b[2Kautotp: tracing the blocks of Sequential"
    first = lines.index("\x1b[2K" + comparing)
    assert lines[first + 1] == "\x1b[2Kautotp: tracing the model"
    assert lines[first + 2] == comparing  # what goes on around it is shown again
    assert lines[-1] == "\x1b[2K"  # and nothing at the end


@pytest.mark.sweep
def test_other_ranks_say_nothing() -> None:
    assert said(WORK, RANK="1") == ""


def test_a_pipe_gets_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    from autotp.outside.progress import doing, working

    with working("planning"), doing("tracing"):
        pass
    assert capfd.readouterr() == ("", "")
