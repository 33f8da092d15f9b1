"""Programs made by hypothesis, and ones that were wrong once, equal the dense ones: 60, and 600 more in the sweep."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from tests.contract.generate import DenseError, Program, is_right, make, run

FOUND = Path(__file__).parent / "seeds.txt"
QUIET: dict[str, Any] = {
    "database": None,
    "deadline": None,
    "phases": (Phase.generate,),
    "suppress_health_check": list(HealthCheck),
}


@st.composite
def programs(draw: Any) -> Program:
    return make(lambda options: draw(st.sampled_from(options)))


def check(program: Program) -> None:
    try:
        outcome = run(program)
    except DenseError:
        assume(False)
    assert is_right(program, outcome), f"{outcome.kind}: {outcome.text}\n{program.text()}"


@settings(max_examples=25, derandomize=True, **QUIET)
@given(programs())
def test_programs_of_every_kind(program: Program) -> None:
    check(program)


# A hundred seconds each: a sweep has some of them, `make long` the others.
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.sweep if n < 5 else pytest.mark.long) for n in range(10)]
)
def test_more_programs_of_every_kind(number: int) -> None:
    seed(number)(settings(max_examples=60, **QUIET)(given(programs())(check)))()


def found() -> list[int]:
    """The seeds in the file, one a line, each with a word on what it was."""
    lines = [line.partition("#")[0].strip() for line in FOUND.read_text(encoding="utf-8").splitlines()]
    return [int(line) for line in lines if line]


@pytest.mark.parametrize("seed", found())
def test_what_was_wrong_once(seed: int) -> None:
    program = make(random.Random(seed).choice)
    outcome = run(program)
    assert is_right(program, outcome), f"{outcome.kind}: {outcome.text}\n{program.text()}"
