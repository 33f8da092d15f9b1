"""The planner equals brute force, on every family: the cuts it chooses, and where it sums gradients."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from autotp.errors import UnsoundPlanError
from autotp.huggingface import models
from autotp.huggingface.examples import examples_for
from autotp.placement.place import Placement, place
from autotp.planner.choose import UnitProblem, choose
from autotp.planner.cost import DEFAULT_HARDWARE, Workload, hardware
from autotp.planner.make import make_plan
from autotp.planner.plan import UnitPlan
from autotp.planner.survey import Survey, survey
from autotp.planner.weigh import Weigher
from tests.exact.test_image_models import NETWORKS
from tests.exact.test_least_memory import MODELS
from tests.exact.test_zoo_sample import SAMPLE
from tests.families import FAMILIES
from tests.planner.oracle import (
    all_cuts,
    best_cuts,
    chosen_seconds,
    factors_in_use,
    least_seconds,
    least_seconds_of_all,
)
from tests.zoo.kinds import CAUSAL, Kind
from tests.zoo.models import model_of

LARGE = ("llama", "phi3", "bloom")


@functools.cache
def surveyed(name: str) -> tuple[nn.Module, Survey]:
    model = models.resolve(FAMILIES[name].config()) if name in FAMILIES else model_of(Kind(name, CAUSAL))
    return model, survey(model, examples_for(model, None))


@dataclass(frozen=True)
class Block:
    """A repeated block: what the planner chose from, what it wrote down, and how it weighed."""

    problem: UnitProblem
    plan: UnitPlan
    weigher: Weigher


def blocks(name: str, tp: int, machine: str = DEFAULT_HARDWARE, tokens: int = 4096) -> list[Block]:
    model, found = surveyed(name)
    workload = Workload(tokens)
    plan = make_plan(model, found, tp, hardware(machine), workload)
    shapes = {unit.path: unit.shape for unit in found.units}
    result = []
    for unit in plan.units:
        if unit.instances[0].rpartition(".")[2].isdigit():
            problem = found.problems[shapes[unit.instances[0]]]
            result.append(Block(problem, unit, Weigher(problem.graph, hardware(machine), workload)))
    assert result
    return result


def placed(block: Block, tp: int) -> Placement:
    return choose(block.problem, tp, block.weigher).placement


OTHERS = [name for name in SAMPLE if name not in FAMILIES]
EVERY = [*FAMILIES, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
SIZES = [pytest.param(name, 4, id=f"{name}-tp4") for name in FAMILIES]
SIZES += [pytest.param(name, 2, id=f"{name}-tp2", marks=pytest.mark.long) for name in FAMILIES]
SIZES += [pytest.param(name, 2, id=f"{name}-tp2", marks=pytest.mark.long) for name in OTHERS]
SIZES += [pytest.param(name, 8, id=f"{name}-tp8") for name in LARGE]


@pytest.mark.sample(10, others="long")
@pytest.mark.parametrize(("name", "tp"), SIZES)
def test_no_combination_of_cuts_is_better(name: str, tp: int) -> None:
    for block in blocks(name, tp):
        elements, seconds = best_cuts(block.problem, tp, block.weigher)
        assert sum(parameter.local_elements for parameter in block.plan.parameters) == elements
        chosen = choose(block.problem, tp, block.weigher)
        sums = sum(collective.seconds for collective in block.plan.collectives)
        assert sums == pytest.approx(block.weigher.seconds(chosen.placement), rel=1e-9)
        assert chosen.seconds == pytest.approx(seconds, rel=1e-9)


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", EVERY)
def test_no_labelling_of_gradients_is_cheaper(name: str) -> None:
    for block in blocks(name, 2):
        placement = placed(block, 2)
        assert len(factors_in_use(placement)) <= 1
        chosen = chosen_seconds(placement, block.weigher)
        assert chosen == pytest.approx(least_seconds(placement, block.weigher, bound=chosen), rel=1e-9)


TWO_FACTORS = [
    *((name, 4, DEFAULT_HARDWARE, 4096) for name in ("llama", "qwen3", "phi3", "cohere", "falcon_grouped", "stablelm")),
    *((name, 8, DEFAULT_HARDWARE, 4096) for name in ("llama", "phi3", "opt", "bert")),
    # Slow links: here a sum over both factors and sums of parameters compete closely with sums of slices.
    *((name, 8, "cpu-gloo", 4096) for name in ("llama", "phi3", "cohere", "phi", "opt", "bert")),
    # As many tokens as make another place the cheapest for both factors together than for either alone.
    ("falcon_grouped", 4, DEFAULT_HARDWARE, 100_000),
    ("falcon_grouped", 8, DEFAULT_HARDWARE, 100_000),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "tp", "machine", "tokens"), TWO_FACTORS)
def test_no_joint_labelling_over_two_factors_is_cheaper(name: str, tp: int, machine: str, tokens: int) -> None:
    """The planner solves one factor after the other; the oracle both at once, with the joint price of joint calls."""
    for block in blocks(name, tp, machine, tokens):
        placement = placed(block, tp)
        assert len(factors_in_use(placement)) == 2
        chosen = chosen_seconds(placement, block.weigher)
        assert chosen == pytest.approx(least_seconds(placement, block.weigher, bound=chosen), rel=1e-9)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "tp"), [("deepseek_v2", 2), ("phi3", 4)])
def test_cuts_that_are_not_chosen_are_placed_at_least_cost_too(name: str, tp: int) -> None:
    """An edited plan may ask for any of them: one low-rank projection cut and the other whole, for example."""
    (block,) = blocks(name, tp)
    counted = 0
    for cuts in all_cuts(block.problem, tp):
        try:
            placement = place(
                block.problem.graph, block.problem.typing, cuts, block.weigher.price, block.problem.unread
            )
        except UnsoundPlanError:
            continue
        chosen = chosen_seconds(placement, block.weigher)
        assert chosen == pytest.approx(least_seconds(placement, block.weigher, bound=chosen), rel=1e-9), cuts
        counted += 1
    assert counted >= 10


class Gated(nn.Module):
    """A norm, a gated MLP and a residual: few enough values to write down every labelling."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((16, 24), (16, 24), (24, 16)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(self.gate(y).relu() * self.up(y))


def test_remembering_frontiers_is_the_same_as_trying_everything() -> None:
    model = Gated()
    found = survey(model, examples_for(model, torch.randn(2, 3, 16, requires_grad=True)))
    (problem,) = found.problems.values()
    weigher = Weigher(problem.graph, hardware(DEFAULT_HARDWARE), Workload())
    placement = choose(problem, 2, weigher).placement
    least = least_seconds_of_all(placement, weigher)
    assert 0 < least < math.inf
    assert least_seconds(placement, weigher) == pytest.approx(least, rel=1e-12)
    assert chosen_seconds(placement, weigher) == pytest.approx(least, rel=1e-12)


# Beyond transformers: convolutions, norms over groups, products for each sample; and products that are gathered where they are
# made, alone.
BUILT = [*((name, False) for name in NETWORKS if name != "unet"), *((name, True) for name in MODELS)]


@pytest.mark.sample(8)
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize(("name", "least_memory"), BUILT)
def test_no_choice_for_networks_of_all_kinds_is_better(name: str, least_memory: bool, tp: int) -> None:
    (make, inputs), machine = MODELS[name] if least_memory else NETWORKS[name][:2], hardware(DEFAULT_HARDWARE)
    model = make().double() if least_memory else make()
    problems = survey(
        model, examples_for(model, inputs), objective="memory" if least_memory else "balanced"
    ).problems.values()
    assert any(problem.proposals for problem in problems)
    for problem in problems:
        weigher = Weigher(problem.graph, machine, Workload())
        chosen = choose(problem, tp, weigher)
        assert (chosen.elements, pytest.approx(chosen.seconds)) == best_cuts(problem, tp, weigher)
        seconds = chosen_seconds(chosen.placement, weigher)
        assert seconds == pytest.approx(least_seconds(chosen.placement, weigher, bound=seconds), rel=1e-9)
