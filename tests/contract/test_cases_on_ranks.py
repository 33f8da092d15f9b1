"""The same cases on real ranks in one process group: every tenth here, the others and more ranks in `make long`."""

from __future__ import annotations

import pytest

from autotp.runtime.launch import run_ranks
from tests.contract.play import assert_as_expected, cases, on_processes

ALL = sorted(cases())
SAMPLE = ALL[::10]
OTHERS = [name for name in ALL if name not in SAMPLE]


@pytest.mark.parametrize(
    ("names", "size"),
    [
        pytest.param(SAMPLE, 2, id="sample-2"),
        pytest.param(OTHERS, 2, id="others-2", marks=pytest.mark.long),
        pytest.param(ALL, 3, id="all-3", marks=pytest.mark.long),
    ],
)
def test_on_real_ranks(names: list[str], size: int) -> None:
    everywhere = run_ranks(on_processes, size, names, limit_s=1800)
    assert_as_expected([outcome for outcomes in everywhere for outcome in outcomes])
