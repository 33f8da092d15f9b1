"""Modules whose Python changes between calls equal the dense module at every call, or say what they do not compute.

Here ranks are threads of this process; a sweep has all cases at two, `make long` at three.
"""

from __future__ import annotations

import pytest

from tests.contract.play import assert_as_expected, cases, simulated

EVERYWHERE = [name for name, (_, expected) in cases().items() if not expected.processes]


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_on_two_simulated_ranks(name: str) -> None:
    assert_as_expected([simulated(name, 2)])


@pytest.mark.long
@pytest.mark.parametrize("name", EVERYWHERE)
def test_on_three_simulated_ranks(name: str) -> None:
    assert_as_expected([simulated(name, 3)])
