"""For the least time every axis that may be cut is a candidate, and no combination of these is faster in as little memory."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest

from autotp.axes.annotation import annotation
from autotp.axes.term import Axis, axes_of_dims
from autotp.errors import UnsoundPlanError
from autotp.huggingface import models
from autotp.huggingface.examples import examples_for
from autotp.placement.place import Placement
from autotp.planner.choose import UnitProblem, local_elements, placed
from autotp.planner.cost import DEFAULT_HARDWARE, Hardware, Workload, hardware
from autotp.planner.front import Front
from autotp.planner.make import make_plan
from autotp.planner.objective import UnitTime, objective_of
from autotp.planner.plan import Plan
from autotp.planner.survey import survey
from autotp.planner.weigh import Weigher
from autotp.session.study import Study
from tests.exact.test_image_models import NETWORKS
from tests.exact.test_least_memory import MODELS
from tests.families import FAMILIES, MIXTURES
from tests.planner.oracle import all_cuts
from tests.zoo.kinds import CAUSAL, Kind
from tests.zoo.models import model_of

# Blocks of the tests are small: links so fast that every cut may pay, such as they are, and so slow that few do.
FAST = replace(hardware(DEFAULT_HARDWARE), latency_us=0.001, hop_us=0.0, link_gbps=4500.0)
MACHINES = (FAST, hardware(DEFAULT_HARDWARE), hardware("cpu-gloo"))
STATE_SPACES = ("falcon_mamba", "mamba2", "falcon_h1", "deepseek_v32", "qwen3_next")
EVERY = [*FAMILIES, *MIXTURES, *STATE_SPACES, *(name for name in NETWORKS if name != "unet"), *MODELS]
MOST = 1500  # combinations of one unit
SLOW = {"qwen3_next"}  # a minute


@functools.cache
def problems(name: str) -> list[UnitProblem]:
    inputs: Any = None
    if name in MODELS:
        make, inputs = MODELS[name]
        model = make().double()
    elif name in NETWORKS:
        make, inputs = NETWORKS[name][:2]
        model = make()
    elif name in STATE_SPACES:
        model = model_of(Kind(name, CAUSAL))
    else:
        model = models.resolve((FAMILIES | MIXTURES)[name].config())
    return list(survey(model, examples_for(model, inputs), objective="time").problems.values())


def free_axes(problem: UnitProblem) -> set[Axis]:
    """The axes of matrices that nothing needs whole, and that are summed over, picked from, or leave the unit."""
    facts = problem.typing.facts
    ends = {axis for fact in facts.values() for axis in axes_of_dims(fact.contracts)}
    ends |= {axis for fact in facts.values() if fact.pick is not None for axis in axes_of_dims([fact.pick.choice])}
    results = next(iter(reversed(problem.graph.nodes))).all_input_nodes
    ends |= {a for node in results if node in facts for dims in facts[node].outputs for a in axes_of_dims(dims)}
    matrices = (node for node in problem.graph.nodes if node.op == "get_attr" and annotation(node).parameter)
    held = {axis for node in matrices if len(facts[node].dims) > 1 for axis in axes_of_dims(facts[node].dims)}
    return {axis for axis in held & ends if not axis.pins and axis.size > 1}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", EVERY)
def test_every_axis_that_may_be_cut_is_a_candidate(name: str) -> None:
    for problem in problems(name):
        proposed = [axis for proposal in problem.proposals for axis in proposal.axes]
        assert free_axes(problem) <= set(proposed)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.sweep) if n in SLOW else n for n in EVERY])
@pytest.mark.parametrize("work", ["decode", "training"])
def test_no_combination_is_faster_in_as_little_memory(name: str, work: str) -> None:
    compared = 0
    for problem in problems(name):
        every = list(itertools.islice(all_cuts(problem, 4), MOST + 1))
        if len(every) > MOST:
            continue
        compared += 1
        for machine in MACHINES:  # whose prices decide where the sums are
            weigher = Weigher(problem.graph, machine, Workload())
            placements = list(_placements(problem, every, weigher, backward=work == "training"))
            _compare(problem, weigher, placements, machine, work)
    assert compared


def _placements(
    problem: UnitProblem, every: list[Any], weigher: Weigher, *, backward: bool
) -> list[tuple[int, Placement]]:
    found = []
    for cuts in every:
        try:
            placement = placed(problem, cuts, weigher, backward=backward)
        except UnsoundPlanError:
            continue
        found.append((local_elements(problem, cuts), placement))
    return found


def _compare(
    problem: UnitProblem, weigher: Weigher, placements: list[tuple[int, Placement]], machine: Hardware, work: str
) -> None:
    objective = objective_of("time", work, None, machine, Workload())
    assert objective is not None
    time = UnitTime(problem, machine, objective)
    points = sorted((elements, sum(time.of(placement))) for elements, placement in placements)
    front = Front(problem, 4, weigher, time)
    fastest = front.fastest()
    assert fastest is not None
    assert fastest.seconds == pytest.approx(min(seconds for _, seconds in points), rel=1e-9)
    found = front.choices()
    least = float("inf")
    for elements, seconds in points:
        if seconds < least:
            least = seconds
            within = [choice.seconds for choice in found if choice.elements <= elements]
            assert min(within) == pytest.approx(seconds, rel=1e-9)


TIED = ("gpt2", "bert", "bloom", "mpt", "cohere", "gemma2", "falcon_multi_query", "opt")


@pytest.mark.sample(8)
@pytest.mark.parametrize("work", ["training", "prefill", "decode"])
@pytest.mark.parametrize("name", [*TIED, "llama", "phi3", "deepseek_v2", "mixtral", "gpt_oss"])
def test_no_plan_takes_less_than_that_of_the_least_time(name: str, work: str) -> None:
    """Of units that share a parameter together, too: as the estimates say, which are made of plans alone."""
    config = (FAMILIES | MIXTURES)[name].config()
    study, other = Study(config, objective="time"), Study(config)
    for machine in MACHINES:
        study.machine = other.machine = machine
        objective = objective_of("time", work, 1e6, machine, study.workload)
        given = 4, machine, study.workload
        ours = make_plan(study.module, study.found, *given, objective=objective)
        assert seconds(study, ours, work) <= seconds(study, make_plan(other.module, other.found, *given), work) * (
            1 + 1e-9
        )


def seconds(study: Study, plan: Plan, work: str) -> float:
    batch, sequence = (8, study.workload.tokens) if work == "decode" else (1, study.workload.tokens)
    if work != "training":
        plan = study.without_backward(plan)
    found = study.estimate_of(plan, batch, sequence)
    return {"training": found.step, "prefill": found.forward, "decode": found.token}[work].total
