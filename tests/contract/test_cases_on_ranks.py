"""The same cases on real ranks, all of them in one process group; `make long` has more ranks."""

from __future__ import annotations

import pytest

from autotp.runtime.launch import run_ranks
from tests.contract.play import assert_as_expected, cases, on_processes, open_cases


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_on_real_ranks(size: int) -> None:
    everywhere = run_ranks(on_processes, size, sorted(cases().keys() - open_cases()), limit_s=1800)
    assert_as_expected([outcome for outcomes in everywhere for outcome in outcomes])
