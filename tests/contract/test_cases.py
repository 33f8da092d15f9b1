"""Modules whose Python changes between calls equal the dense module at every call, or say what they do not compute.

All cases run on ranks that are threads of this process, and on real ranks, in one process group; `make sweep` has more ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotp.runtime.launch import run_ranks
from tests.contract.play import Outcome, cases, on_process, simulated

EVERYWHERE = [name for name, (_, expected) in cases().items() if not expected.processes]


def on_processes(names: list[str]) -> list[Outcome]:
    """Runs on a rank."""
    return [on_process(name) for name in names]


def assert_as_expected(outcomes: Iterator[Outcome] | list[Outcome]) -> None:
    wrong = [f"{o.name}: {o.kind}: {o.text}" for o in outcomes if not o.holds(cases()[o.name][1])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_on_two_simulated_ranks(name: str) -> None:
    assert_as_expected([simulated(name, 2)])


@pytest.mark.sweep
@pytest.mark.parametrize("name", EVERYWHERE)
def test_on_three_simulated_ranks(name: str) -> None:
    assert_as_expected([simulated(name, 3)])


def test_on_two_real_ranks() -> None:
    assert_as_expected([outcome for rank in run_ranks(on_processes, 2, list(cases()), limit_s=600) for outcome in rank])


@pytest.mark.sweep
def test_on_three_real_ranks() -> None:
    assert_as_expected([outcome for rank in run_ranks(on_processes, 3, list(cases()), limit_s=900) for outcome in rank])
