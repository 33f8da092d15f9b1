"""One pipeline: whatever is public plans alike, from the same arguments."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.checkpoint.full import state_of
from autotp.huggingface.models import build_model
from autotp.planner.plan import Plan
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.arguments import Wishes
from autotp.session.parallel import cut_model
from autotp.session.pipeline import Session
from autotp.session.study import Study
from tests.checkpoint.models import config_of, simulated, write

TP = 2
PUBLIC = (autotp.plan, autotp.diff, autotp.parallelize, autotp.from_pretrained, autotp.shard, autotp.verify)
WISHES: list[dict[str, Any]] = [
    {},
    {"hardware": "cpu-gloo", "tokens": 64},
    {"settings": {"model.layers.0.mlp": "replicate"}},
    {"sequence_parallel": True},
    {"gather_logits": False},
]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_whatever_plans_takes_the_same_arguments(function: Callable[..., Any]) -> None:
    assert inspect.signature(function).parameters["wishes"].kind is inspect.Parameter.VAR_KEYWORD
    assert set(Wishes.__annotations__) <= set(re.findall(r"- `(\w+)` \(", str(autotp.plan.__doc__)))


def test_an_argument_that_there_is_not_names_the_nearest() -> None:
    with pytest.raises(autotp.UsageError, match="there is no argument 'hardwre'; did you mean 'hardware'"):
        autotp.plan("gpt2", 2, hardwre="cpu-gloo")  # type: ignore[call-arg]


@pytest.mark.sample(1)
@pytest.mark.parametrize("wishes", WISHES, ids=str)
def test_one_plan_whoever_makes_it(tmp_path: Path, wishes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the sentence on a loss, which only those have who look at plans."""
    monkeypatch.setenv("AUTOTP_CACHE", str(tmp_path / "plans"))
    write("llama", tmp_path / "dense")

    built = build_model(config_of("llama"), meta=False)

    def cut(ranks: Ranks) -> Plan:
        model = copy.deepcopy(built)
        cut_model(Session(model, **wishes), ranks)
        return state_of(model).plan

    plans = {
        "parallelize": simulate(TP, cut)[0],
        "shard": autotp.shard(tmp_path / "dense", tmp_path / "cut", TP, **wishes),
    }
    plans["from_pretrained"] = simulated(tmp_path / "dense", TP, None, lambda model: state_of(model).plan, **wishes)[0]
    expected = autotp.plan(config_of("llama"), TP, **wishes)
    assert Study(config_of("llama"), **wishes).plan(TP) == expected
    for name, plan in plans.items():
        assert plan.to_json() == _without_loss(expected).to_json(), name


def _without_loss(plan: Plan) -> Plan:
    return Plan.from_json(plan.to_json().replace(f'"loss": "{plan.loss}"', '"loss": ""'))


def test_a_model_is_not_surveyed_before_that_is_needed() -> None:
    session = Session(nn.Sequential(nn.Linear(4, 4)))
    assert not session.knows_inputs
    assert not session.is_surveyed
    with pytest.raises(autotp.UsageError, match="the inputs of Sequential are not known"):
        session.plan(TP)
    known = Session(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)), example=torch.zeros(2, 4))
    known.plan(TP)
    assert known.is_surveyed
