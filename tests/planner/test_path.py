"""The shortest path through units within a bound of memory is the best of all ways to choose."""

from __future__ import annotations

import itertools
import random

import pytest

from autotp.planner.path import Step, cheapest


def brute(steps: list[Step], change: float, most: float) -> float | None:
    """Seconds of the best of all choices; None if none keeps so little."""
    found = []
    for states in itertools.product(*((False, True) if step.can else (False,) for step in steps)):
        changes = sum(state and not (i and states[i - 1]) for i, state in enumerate(states))
        own = [step for step, state in zip(steps, states, strict=True) if state]
        if sum(step.kept for step in own) <= most:
            found.append(sum(step.seconds for step in own) + changes * change)
    return min(found, default=None)


def price(steps: list[Step], taken: frozenset[str], change: float) -> float:
    states = [step.path in taken for step in steps]
    changes = sum(state and not (i and states[i - 1]) for i, state in enumerate(states))
    return sum(step.seconds for step, state in zip(steps, states, strict=True) if state) + changes * change


@pytest.mark.parametrize("seed", range(200))
def test_it_is_as_good_as_brute_force(seed: int) -> None:
    numbers = random.Random(seed)
    kinds = [(numbers.randint(-2, 9), -numbers.randint(0, 9)) for _ in range(3)]
    steps = []
    for i in range(numbers.randint(1, 9)):
        seconds, kept = numbers.choice(kinds)
        steps.append(Step(str(i), seconds, kept, numbers.random() < 0.8))
    change = numbers.randint(0, 6)
    for most in (0, -3, -10, -25, -60):
        taken, least = cheapest(steps, change, most), brute(steps, change, most)
        assert (taken is None) is (least is None)
        if taken is not None:
            assert price(steps, taken, change) == least
            assert sum(step.kept for step in steps if step.path in taken) <= most
            assert all(step.can for step in steps if step.path in taken)


def test_hundreds_of_equal_units_are_one_run() -> None:
    steps = [Step(str(i), 1.0, -1.0, True) for i in range(300)]
    taken = cheapest(steps, 5.0, -100.0)
    assert taken is not None
    places = sorted(map(int, taken))
    assert len(places) == 100
    assert places[-1] - places[0] == 99
