"""The least time: the choice equals brute force, alone and for all units within a bound of memory, and what is cut is exact."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autotp
from autotp.errors import UnsoundPlanError, UsageError
from autotp.huggingface import models
from autotp.planner.choose import Choice, UnitProblem, local_elements, placed
from autotp.planner.cost import Workload, hardware
from autotp.planner.front import Front, fastest
from autotp.planner.objective import WORKLOADS, Objective, UnitTime, objective_of
from autotp.planner.plan import Plan
from autotp.planner.select import LeastTime
from autotp.planner.weigh import Weigher
from autotp.session.calibrate import write_node
from autotp.session.study import Study
from tests.families import FAMILIES, MIXTURES
from tests.planner.oracle import all_cuts
from tests.planner.test_oracle import blocks

# Links so fast, and so slow, that other cuts are best; blocks of the tests' families are small.
MACHINES = ("h100-nvlink-8", "cpu-gloo")
FAST = replace(hardware("h100-nvlink-8"), latency_us=0.001, hop_us=0.0, link_gbps=4500.0)


def objective(work: str, name: str = "h100-nvlink-8") -> Objective:
    found = objective_of("time", work, None, hardware(name), Workload())
    assert found is not None
    return found


def brute_force(problem: UnitProblem, weigher: Weigher, tp: int, time: UnitTime) -> list[tuple[int, float]]:
    """Elements and seconds of every combination that can be placed, of which none is better in both."""
    found = []
    for cuts in all_cuts(problem, tp):
        try:
            placement = placed(problem, cuts, weigher, backward=time.backward)
        except UnsoundPlanError:
            continue
        found.append((local_elements(problem, cuts), sum(time.of(placement))))
    best: list[tuple[int, float]] = []
    seconds = float("inf")
    for elements, own in sorted(found):
        if own < seconds * (1 - 1e-12):
            best, seconds = [*best, (elements, own)], own
    return best


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "phi3", "deepseek_v2", "falcon_grouped"])
@pytest.mark.parametrize("work", ["decode", "training"])
def test_no_combination_is_faster_in_as_little_memory(name: str, work: str) -> None:
    for block in blocks(name, 4):
        for machine in (FAST, *map(hardware, MACHINES)):
            time = UnitTime(block.problem, machine, objective(work))
            expected = brute_force(block.problem, block.weigher, 4, time)
            front = Front(block.problem, 4, block.weigher, time)
            fastest_alone = front.fastest()
            assert fastest_alone is not None
            assert fastest_alone.seconds == pytest.approx(expected[-1][1], rel=1e-9)
            found = front.choices()
            assert len(expected) <= len(found)
            assert found[-1].seconds == pytest.approx(expected[-1][1], rel=1e-9)
            for elements, seconds in expected:
                within = [choice.seconds for choice in found if choice.elements <= elements]
                assert min(within) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_nothing_is_faster_than_what_its_cuts_compute_at_least(name: str) -> None:
    """Nor is that far from the truth, where links are fast."""
    nearest = 0.0
    for block in blocks(name, 4):
        time = UnitTime(block.problem, FAST, objective("training"))
        for cuts in all_cuts(block.problem, 4):
            try:
                placement = placed(block.problem, cuts, block.weigher)
            except UnsoundPlanError:
                continue
            if seconds := sum(time.of(placement)):
                nearest = max(nearest, time.least_under(cuts) / seconds)
    assert 0.5 < nearest <= 1 + 1e-9


def test_units_together_equal_brute_force() -> None:
    draw = random.Random(0)

    def choices() -> list[Choice]:
        points = sorted((draw.randrange(1, 60), -draw.randrange(1, 60)) for _ in range(draw.randrange(1, 5)))
        return [Choice({}, None, elements, float(-seconds)) for elements, seconds in points]  # type: ignore[arg-type]

    for _ in range(200):
        fronts = [(draw.randrange(1, 5), choices()) for _ in range(draw.randrange(1, 5))]
        most = draw.randrange(1, 400)
        every = list(itertools.product(*(own for _, own in fronts)))

        def sums(
            chosen: tuple[Choice, ...] | list[Choice], fronts: list[tuple[int, list[Choice]]] = fronts
        ) -> tuple[int, float]:
            pairs = list(zip(fronts, chosen, strict=True))
            return sum(n * c.elements for (n, _), c in pairs), sum(n * c.seconds for (n, _), c in pairs)

        possible = [sums(chosen) for chosen in every if sums(chosen)[0] <= most]
        elements, seconds = sums(fastest(fronts, most))
        if possible:
            assert elements <= most
            assert seconds == min(own for _, own in possible)
        else:
            assert elements == min(sums(chosen)[0] for chosen in every)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["llama", "phi3", "gpt_neox", "mixtral", "falcon_grouped", "cohere"])
def test_a_chain_of_units_equals_brute_force_at_every_bound_of_memory(name: str) -> None:
    """Embedding, blocks and head: every combination of the combinations of each."""
    config = (FAMILIES | MIXTURES)[name].config()
    config.tie_word_embeddings = False
    study = Study(config, objective="time")
    problems, tp = study.found.problems, 4
    assert len(problems) >= 3
    for machine in (FAST, hardware("cpu-gloo")):
        weighers = {shape: Weigher(problem.graph, machine, Workload()) for shape, problem in problems.items()}
        wanted = objective("training")
        free = LeastTime(study.module, study.found, weighers, tp, machine, wanted)
        every = [
            [
                (free.units[shape] * elements, free.units[shape] * seconds)
                for elements, seconds in brute_force(problem, weighers[shape], tp, UnitTime(problem, machine, wanted))
            ]
            for shape, problem in problems.items()
        ]
        sums = sorted(tuple(map(sum, zip(*ways, strict=True))) for ways in itertools.product(*every))
        outside = wanted.most_bytes / wanted.bytes_of_element - free.most
        for most in sorted({elements for elements, _ in sums})[:: max(len(sums) // 12, 1)]:
            bound = replace(wanted, most_bytes=(most + outside + 0.5) * wanted.bytes_of_element)
            chosen = LeastTime(study.module, study.found, weighers, tp, machine, bound)(problems)
            assert sum(free.units[shape] * choice.elements for shape, choice in chosen.items()) <= most
            seconds = sum(free.units[shape] * choice.seconds for shape, choice in chosen.items())
            assert seconds == pytest.approx(min(own for elements, own in sums if elements <= most), rel=1e-9)


def planned(**wishes: object) -> Plan:
    return autotp.plan("llama", 8, objective="time", **wishes)  # type: ignore[arg-type]


def test_a_table_is_left_whole_unless_memory_asks_for_it() -> None:
    free, bounded = planned(workload="decode"), planned(workload="decode", memory_gib=1.6)
    least = autotp.plan("llama", 8)
    assert least.elements()[1] == bounded.elements()[1] < free.elements()[1]
    assert sum(c.seconds for c in free.step()) < sum(c.seconds for c in least.step())
    assert "least time of a decoding step of 8 tokens, with at most 1.6 GiB of weights on a rank" in bounded.objective
    assert least.objective == ""
    assert Plan.from_json(free.to_json()) == free
    (table,) = (unit for unit in free.units if unit.instances == ("model.embed_tokens",))
    assert any("cutting it would save 114,688,000 elements a rank, and take" in reason for reason in table.not_cut)


def test_a_plan_for_time_is_exact(tmp_path: Path) -> None:
    write_node(replace(FAST, name="fast"), tmp_path)
    asked: dict[str, Any] = {"objective": "time", "workload": "training", "hardware": "fast", "rules": [tmp_path]}
    model = models.resolve(FAMILIES["llama"].config())
    whole, local = autotp.plan(model, 2, **asked).elements()
    assert autotp.plan(model, 2).elements()[1] < local < whole
    autotp.verify(FAMILIES["llama"].config(), 2, **asked).raise_for_failure()


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"objective": "tiem"}, "there is no objective 'tiem'; did you mean 'time'"),
        ({"objective": "time", "workload": "serving"}, "there is no workload 'serving'"),
        ({"memory_gib": 3.0}, "memory_gib bounds the memory of a rank with objective='time'"),
        ({"objective": "time", "memory_gib": -1.0}, "give a number of GiB above 0"),
    ],
)
def test_what_is_none_is_refused(wishes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("'", ".")):
        autotp.plan("llama", 2, **wishes)  # type: ignore[arg-type]
    assert set(WORKLOADS) == {"training", "prefill", "decode", "mix"}
