"""`sequence_parallel="auto"`: positions are cut where a training step would not fit a rank otherwise, and the plan says why."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig

import autotp
from autotp.planner.advise import ROOM
from autotp.planner.estimate import GIB, Estimate
from autotp.planner.plan import Plan
from autotp.runtime.groups.launch import run_ranks
from autotp.session.study import Study
from autotp.verify import Float64
from tests.exact.test_sequence_ranks import dense_model, ids, trained
from tests.families import FAMILIES

TOKENS = 512


def node(folder: Path, memory: float) -> dict[str, Any]:
    """A node whose ranks have so many bytes that may be used, in a folder of its own: a process reads a file of rules once."""
    folder = folder / f"{memory:.0f}"
    file = folder / "hardware" / "small.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "[small]\ngpus = 8\ntflops_bf16 = 100\nmemory_gbps = 2000\nlink_gbps = 200\nlatency_us = 5\n"
        f'memory_gib = {memory / ROOM / GIB!r}\nsource = "a test"\n'
    )
    return {"hardware": "small", "rules": [folder], "tokens": TOKENS}


def both(model: Any, tp: int, wishes: dict[str, Any]) -> list[tuple[Plan, Estimate]]:
    """The plans with whole positions and with cut ones, with what they take."""
    studies = [Study(model, sequence_parallel=cut, **wishes) for cut in (False, True)]
    return [(plan, study.estimate(plan)) for study in studies for plan in [study.plan(tp)]]


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 96,
    "num_hidden_layers": 4,
}
MIXED = {
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [1, 2],
    "head_dim": 16,
}


def every_way(study: Study, whole: Plan, cut: Plan) -> list[tuple[Plan, Estimate]]:
    """All plans whose units are those of the one or of the other, priced by themselves."""
    possible = [path for unit in cut.units if unit.sequence for path in unit.instances]
    found = []
    for states in itertools.product((False, True), repeat=len(possible)):
        taken = {path for path, state in zip(possible, states, strict=True) if state}
        units = []
        for one, other in zip(whole.units, cut.units, strict=True):
            for unit, inside in ((one, False), (other, True)):
                instances = tuple(path for path in unit.instances if (path in taken) is inside)
                units += [replace(unit, instances=instances)] if instances else []
        plan = study.bounded(replace(whole, units=tuple(units), around=()))
        found.append((plan, study.estimate(plan)))
    return found


@pytest.mark.parametrize(("name", "more"), [("llama", {}), pytest.param("qwen3_moe", MIXED, marks=pytest.mark.sweep)])
def test_no_choice_of_units_is_faster_at_any_memory(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    """Of four blocks, of one kind or of two, every subset."""
    config = AutoConfig.for_model(name, **SMALL, **more)
    study = Study(config, **node(tmp_path, 1e9))
    (whole, _), (cut, _) = both(config, 4, node(tmp_path, 1e9))
    every = every_way(study, whole, cut)
    assert len(every) == 16
    needs = sorted({estimate.memory.training for _, estimate in every})
    assert len(needs) >= 5
    seen = set()
    for memory in (needs[0] * 0.99, *(need * 1.0001 for need in [*needs[:-1:2], needs[-1]])):
        fitting = [estimate.step.total for _, estimate in every if estimate.memory.training <= memory]
        made = Study(config, sequence_parallel="auto", **node(tmp_path, memory)).plan(4)
        taken = study.estimate(made)
        if fitting:
            assert taken.memory.training <= memory
            assert taken.step.total == pytest.approx(min(fitting), rel=1e-12)
        else:
            assert taken.memory.training == needs[0]
        blocks = sum(unit.sequence * len(unit.instances) for unit in made.units)
        seen.add(blocks)
        words = {0: "whole", 4: "cut"}.get(blocks, f"cut in {blocks} of 4 units")
        assert made.positions.startswith(f"positions are {words}: a training step of 512 tokens")
        assert Plan.from_json(made.to_json()) == made
    assert {0, 4} < seen


@pytest.mark.parametrize("tp", [2, pytest.param(3, marks=pytest.mark.sweep)])
def test_a_model_of_which_some_blocks_are_cut_is_exact(tp: int, tmp_path: Path) -> None:
    config = AutoConfig.for_model("llama", **SMALL)
    (_, much), (_, little) = both(config, tp, node(tmp_path, 1e9))
    wishes = node(tmp_path, (much.memory.training + little.memory.training) / 2)
    plan = autotp.plan(config, tp, sequence_parallel="auto", **wishes)
    assert "positions are cut in 2 of 4 units" in plan.positions
    assert {unit.sequence for unit in plan.units if "layers" in unit.instances[0]} == {False, True}
    autotp.verify(config, tp, sequence_parallel="auto", **wishes).raise_for_failure()
    read = Plan.from_json(plan.to_json())
    autotp.verify(config, tp, plan=read, rules=wishes["rules"]).raise_for_failure()


def test_what_is_said_is_what_the_estimate_says(tmp_path: Path) -> None:
    study = Study(FAMILIES["llama"].config(), sequence_parallel="auto", **node(tmp_path, 1e9))
    plan = study.plan(2)
    estimate = study.estimate(plan)
    assert f" {estimate.memory.training / GIB:.4g} of " in plan.positions
    assert f" {estimate.step.total * 1e3:.4g} ms;" in plan.positions


def test_where_nothing_can_be_cut_over_positions_they_stay_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))
    plan = autotp.plan(model, 2, example=(torch.ones(4, 8, 6, 6),), sequence_parallel="auto", **node(tmp_path, 1.0))
    assert plan.positions == "positions stay whole: no unit hands on what can be cut over them"
    assert not any(unit.sequence for unit in plan.units)


def test_one_rank_has_nothing_to_cut() -> None:
    assert not any(unit.sequence for unit in autotp.plan("gpt2", 1, sequence_parallel="auto").units)


@pytest.mark.parametrize("tp", [2, pytest.param(3, marks=pytest.mark.sweep)])
def test_the_model_is_exact_either_way(tp: int, tmp_path: Path) -> None:
    config = FAMILIES["llama"].config()
    for memory in (1.0, 1e12):
        wishes = node(tmp_path, memory)
        plan = autotp.plan(config, tp, sequence_parallel="auto", **wishes)
        assert any(unit.sequence for unit in plan.units) is (memory == 1.0)
        autotp.verify(config, tp, sequence_parallel="auto", **wishes).raise_for_failure()


def on_rank(folder: Path, memory: float) -> tuple[Any, ...]:
    """Runs on a rank."""
    model = autotp.parallelize(dense_model(), sequence_parallel="auto", **node(folder, memory))
    ranks, plan = model._autotp.ranks, model._autotp.plan
    with ranks.logging() as log, Float64():
        model(input_ids=ids(), use_cache=False).logits.sum().backward()
    model.zero_grad()
    return Counter((c.kind, c.phase, c.of) for c in log.calls), plan.to_json(), trained(model)


def test_two_ranks_that_cut_one_block_of_two_train_as_the_dense_model_does(tmp_path: Path) -> None:
    (_, much), (_, little) = both(FAMILIES["llama"].config(), 2, node(tmp_path, 1e9))
    true = trained(dense_model())
    for counted, text, weights in run_ranks(on_rank, 2, tmp_path, (much.memory.training + little.memory.training) / 2):
        plan = Plan.from_json(text)
        assert "positions are cut in 1 of 2 units" in plan.positions
        assert counted == Counter((c.kind, c.phase, c.of) for c in plan.step())
        assert all(torch.allclose(weights[name], value, rtol=1e-9, atol=1e-11) for name, value in true.items())


@pytest.mark.parametrize("wrong", ["automatic", 2, None, "yes"])
def test_another_word_is_refused(wrong: object) -> None:
    with pytest.raises(autotp.UsageError, match="sequence_parallel is True, False or 'auto', not"):
        autotp.plan("gpt2", 2, sequence_parallel=wrong)  # type: ignore[arg-type]
