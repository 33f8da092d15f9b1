"""The same cases on real ranks in one process group: one in forty here, one in ten in the sweep, the others and more ranks in
`make long`."""

from __future__ import annotations

import pytest

from autotp.runtime.groups.launch import run_ranks
from tests.contract.play import assert_as_expected, cases, on_processes, one_in

ALL = sorted(cases())
SAMPLE = one_in(40, ALL)
MORE = [name for name in one_in(10, ALL) if name not in SAMPLE]
OTHERS = [name for name in ALL if name not in SAMPLE + MORE]


@pytest.mark.parametrize(
    ("names", "size"),
    [
        pytest.param(SAMPLE, 2, id="sample-2"),
        pytest.param(MORE, 2, id="more-2", marks=pytest.mark.sweep),
        pytest.param(OTHERS, 2, id="others-2", marks=pytest.mark.long),
        pytest.param(ALL, 3, id="all-3", marks=pytest.mark.long),
    ],
)
def test_on_real_ranks(names: list[str], size: int) -> None:
    everywhere = run_ranks(on_processes, size, names, limit_s=1800)
    assert_as_expected([outcome for outcomes in everywhere for outcome in outcomes])
