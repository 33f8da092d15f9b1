"""What a survey keeps is not changed by those who use it: plans, programs and the difference read the same traces."""

from __future__ import annotations

import copy
from typing import Any

import torch

import autotp
from autotp.api import join_ranks
from autotp.axes.annotation import annotation
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.planner.survey import Survey, survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from tests.exact.test_image_models import NETWORKS


def kept(found: Survey) -> list[Any]:
    """The graphs as text, and what their nodes carry."""
    graphs = [traced.graph for traced in found.traced.values()]
    return [(str(graph), [(annotation(node), sorted(node.meta)) for node in graph.nodes]) for graph in graphs]


def test_programs_are_made_of_copies() -> None:
    make, inputs, _ = NETWORKS["modulated"]  # what its modulations make is gathered, at markers
    torch.manual_seed(0)
    dense = make().double()
    inputs = tuple(each.double() for each in inputs)
    found = survey(dense, examples_for(dense, inputs), ())
    before = kept(found)
    plan = autotp.plan(dense, 2, example=inputs)
    assert any(unit.collected for unit in plan.units)
    compilers = make_compilers(plan, found)
    assert kept(found) == before

    def on_rank(ranks: Ranks) -> torch.Tensor:
        model = apply_plan(copy.deepcopy(dense), plan, ranks, compilers)
        join_ranks(model, ranks)
        result: torch.Tensor = model(*inputs)
        result.sum().backward()
        return result.detach()

    for result in simulate(2, on_rank):
        torch.testing.assert_close(result, dense(*inputs).detach(), rtol=1e-9, atol=1e-9)
    assert kept(found) == before
