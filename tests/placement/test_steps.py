"""What is joined, what is priced and what stands in a program are the same steps."""

from __future__ import annotations

from collections import Counter

import pytest

from autotp.placement.place import Placement
from autotp.placement.placed import placed_as
from autotp.placement.steps import Step
from autotp.placement.transition import Joined, Transition
from autotp.planner.cost import Workload, hardware
from autotp.planner.weigh import Weigher
from autotp.rewrite.build import build
from tests.placement.test_sequence import placed as placed_over_positions
from tests.planner.test_oracle import blocks, placed


def is_priced_and_built(placement: Placement, weigher: Weigher) -> set[str]:
    """Every step that sends is a part of collectives and one node of the program; returns what such steps do."""

    def sends(step: Step) -> bool:
        return bool(step.record.sends(gradient=step.about in placement.flow.gradient))

    sent = Counter(step.record for step in placement.steps if sends(step))
    priced = {(part.node, part.record) for each in weigher.collectives(placement) for part in each.parts}
    assert priced == {(step.about.name, step.record) for step in placement.steps if sends(step)}
    assert sorted(step.record.does for call in placement.calls for step in call if sends(step)) == sorted(
        record.does for record in sent.elements()
    )
    built: Counter[Transition] = Counter()
    for node in build(placement, {}, "unit").graph.nodes:
        record = placed_as(node).collective
        if record is not None and not isinstance(record, Joined):
            built[record.alone] += 1
    assert {record: built[record] for record in sent} == sent
    return {record.does for record in sent}


@pytest.mark.parametrize(("name", "tp"), [("llama", 4), ("phi3", 4), ("bloom", 2), ("deepseek_v2", 2)])
def test_each_step_that_sends_is_priced_and_is_one_node(name: str, tp: int) -> None:
    for block in blocks(name, tp):
        assert {"reduce", "enter"} <= is_priced_and_built(placed(block, tp), block.weigher)


def test_so_are_the_steps_around_positions() -> None:
    placement = placed_over_positions()
    weigher = Weigher(placement.typed.graph, hardware("cpu-gloo"), Workload(64))
    assert {"scatter_sum", "gather_positions", "enter"} <= is_priced_and_built(placement, weigher)
