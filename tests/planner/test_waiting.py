"""Which products wait for their sum: no choice of them costs less than the one that is found."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from autotp.errors import UnsoundPlanError
from autotp.placement import place
from autotp.placement.place import Placement
from autotp.planner.choose import placed
from autotp.planner.cost import Workload
from autotp.planner.weigh import Weigher
from tests.families import FAMILIES, MIXTURES
from tests.planner.test_whole_space import MACHINES, problems

# Both halves of a rotary embedding wait together, and one product behind another.
TOGETHER = ("gemma2", "deepseek_v3", "stablelm")
OTHERS = [name for name in (*FAMILIES, *MIXTURES) if name not in TOGETHER]
MOST = 6  # products of one unit of which every choice is tried


def _every(
    forward: Callable[[frozenset[str]], Any], whole: Callable[[Any], Placement], seconds: Any, waits: Any
) -> Placement:
    """The cheapest of all choices, also of products that there are only while others wait."""
    tried, known = dict[frozenset[str], Placement](), frozenset[str]()
    while len(known) <= MOST:
        sizes = range(len(known) + 1)
        every = {frozenset(some) for size in sizes for some in itertools.combinations(sorted(known), size)}
        if not every - tried.keys():
            break
        for trial in every - tried.keys():
            found = forward(trial)
            tried[trial] = whole(found)
            known |= found.placement.flow.products
    return min(tried.values(), key=seconds)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [TOGETHER[0], *OTHERS, *TOGETHER[1:]])
def test_no_choice_of_products_that_wait_costs_less(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    own, compared = vars(place)["_cheapest"], 0
    for problem, machine in itertools.product(problems(name), MACHINES):
        weigher = Weigher(problem.graph, machine, Workload())
        for _, cuts in itertools.islice(problem.combinations(4), 6):
            found = []
            for way in (own, _every):
                monkeypatch.setattr(place, "_cheapest", way)
                try:
                    found.append(weigher.seconds(placed(problem, cuts, weigher)))
                except UnsoundPlanError:
                    continue
            if found:
                assert found[0] <= found[-1] * (1 + 1e-9)  # of more products not every choice is tried
                compared += 1
    assert compared
