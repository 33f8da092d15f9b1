"""Whatever goes wrong on one rank, the others end soon by an error that says so, or go on where nothing is lost; and what was
saved last is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoModelForCausalLM

import autotp
from autotp.checkpoint.replace import settle

from .play import Told, run
from .rank import FAULTS, PHASES, REASONS

LONGEST_S = 15.0
LOSES_NOTHING = ("slow", "store lost")  # until something is asked of the store


def is_right(fault: str, told: Told) -> bool:
    """Returns if a rank that had no fault itself ended as docs/failures.md says."""
    if told.outcome == "finished":
        return fault in LOSES_NOTHING
    if fault == "slow":
        return False
    error = getattr(autotp, told.outcome, type(None))
    named = REASONS[fault] in told.text
    return issubclass(error, autotp.AutotpError) and named and told.seconds < LONGEST_S


@pytest.mark.sample(1, sweep=3, others="long")
@pytest.mark.parametrize("way", ["shared", "gloo"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_others_hear_of_a_fault(fault: str, phase: str, way: str, tmp_path: Path) -> None:
    for told in run(tmp_path, fault, phase, way):
        assert is_right(fault, told), told
    if phase in ("save", "load"):
        settle(tmp_path / "model")
        assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() > 0
    if phase in ("save_training", "load_training"):
        assert_whole(tmp_path / "training")


def assert_whole(folder: Path) -> None:
    """Of a state of training every file that it speaks of is there, and as long as it says."""
    settle(folder)
    stored = FileSystemReader(folder).read_metadata().storage_data
    assert stored
    for piece in stored.values():
        assert (folder / piece.relative_path).stat().st_size >= piece.offset + piece.length
