"""What is measured of a node gives back the numbers that the times were made of."""

from __future__ import annotations

import random

import pytest

from autotp.errors import UsageError
from autotp.planner.cost import Hardware
from autotp.planner.fit import Timing, fitted

SIZES = tuple(2.0**power for power in range(10, 26, 2))
NODES = [(6.6, 0.6, 450.0), (40.0, 0.0, 3.0), (5.0, 3.0, 20.0), (100.0, 20.0, 0.5), (0.0, 8.0, 12.0)]


def node(latency: float, hop: float, link: float) -> Hardware:
    return Hardware("node", 8, 1.0, 1.0, 1000.0, link, latency, hop)


def timings(of: Hardware, ranks: int, noise: float = 0.0) -> list[Timing]:
    draw = random.Random(0)
    return [
        Timing(kind, size, of.seconds(kind, size, ranks) * (1 + noise * draw.uniform(-1, 1)))
        for kind in ("all_reduce", "all_gather")
        for size in SIZES
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("numbers", NODES)
def test_times_by_the_formula_give_its_numbers(numbers: tuple[float, float, float], ranks: int) -> None:
    true = node(*numbers)
    found = fitted(node(1.0, 1.0, 1.0), timings(true, ranks), ranks)
    assert (found.latency_us, found.hop_us, found.link_gbps) == pytest.approx(numbers, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("ranks", [2, 8])
def test_times_that_vary_give_numbers_that_predict_them(ranks: int) -> None:
    true = node(20.0, 2.0, 10.0)
    found = fitted(true, timings(true, ranks, noise=0.1), ranks)
    for kind in ("all_reduce", "all_gather"):
        for size in SIZES:
            assert found.seconds(kind, size, ranks) == pytest.approx(true.seconds(kind, size, ranks), rel=0.15)


def test_times_that_do_not_grow_with_the_size_are_refused() -> None:
    same = [Timing(kind, size, 1e-3) for kind in ("all_reduce", "all_gather") for size in SIZES]
    with pytest.raises(UsageError, match="do not grow"):
        fitted(node(1.0, 1.0, 1.0), same, 2)
