"""Whatever goes wrong on one rank, the others end soon by an error that says so, or go on where nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import autotp

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


@pytest.mark.sample(3, others="long")
@pytest.mark.parametrize("way", ["shared", "gloo"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_others_hear_of_a_fault(fault: str, phase: str, way: str, tmp_path: Path) -> None:
    for told in run(tmp_path, fault, phase, way):
        assert is_right(fault, told), told
