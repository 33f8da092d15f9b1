"""`sequence_parallel="auto"`: positions are cut where a training step would not fit a rank otherwise, and the plan says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.planner.advise import ROOM
from autotp.planner.estimate import GIB, Estimate
from autotp.planner.plan import Plan
from autotp.session.study import Study
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


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_fastest_plan_that_fits_is_taken_at_any_memory(name: str, tmp_path: Path) -> None:
    config = FAMILIES[name].config()
    (whole, much), (cut, little) = both(config, 4, node(tmp_path, 1e9))
    needs = [estimate.memory.training for estimate in (much, little)]
    assert needs[1] < needs[0]
    assert cut != whole
    for memory in (needs[0] * 1.01, needs[0] * 0.99, needs[1] * 1.01, needs[1] * 0.99):
        fitting = [pair for pair in ((whole, much), (cut, little)) if pair[1].memory.training <= memory]
        wanted, _ = min(fitting or [(cut, little)], key=lambda pair: pair[1].step.total)
        made = Study(config, sequence_parallel="auto", **node(tmp_path, memory)).plan(4)
        assert [unit.sequence for unit in made.units] == [unit.sequence for unit in wanted.units]
        assert made.around == wanted.around
        assert made.units == wanted.units
        assert made.positions.startswith(
            f"positions are {'cut' if wanted is cut else 'whole'}: a training step of 512 tokens"
        )
        assert Plan.from_json(made.to_json()) == made


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


@pytest.mark.parametrize("wrong", ["automatic", 2, None, "yes"])
def test_another_word_is_refused(wrong: object) -> None:
    with pytest.raises(autotp.UsageError, match="sequence_parallel is True, False or 'auto', not"):
        autotp.plan("gpt2", 2, sequence_parallel=wrong)  # type: ignore[arg-type]
