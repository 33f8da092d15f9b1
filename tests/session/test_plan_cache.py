"""Plans kept on disk: found again for an equal model only, and never needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from autotp.capture.varying import Seen
from autotp.dispatch.calls import UnitCalls
from autotp.huggingface.models import build_model
from autotp.outside.kept import FOLDER_VARIABLE
from autotp.planner.parameters import Parameters
from autotp.planner.plan import OutsidePlan, Plan
from autotp.session.pipeline import Session
from autotp.session.plan_cache import Prepared, cached_plan
from tests.checkpoint.models import config_of

MODEL = build_model(config_of("gpt2"))
CALLS = (
    UnitCalls("h.0", (Seen("[0]", True, "[2, 16, 64]", (0, 1)), Seen("[1]", False, "[-1.5]", ())), (1,), ("[0]",)),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


def plan_of(tp: int) -> Plan:
    """The plan that leaves everything whole."""
    named = MODEL.named_parameters(remove_duplicate=False)
    left = tuple(OutsidePlan(name, tuple(parameter.shape), "") for name, parameter in named)
    parameters = Parameters(MODEL)
    tied = tuple(map(tuple, parameters.tied()))
    return Plan(1, "GPT2LMHeadModel", parameters.fingerprint(), tp, "none", 4096, 2, (), left, tied)


class Asked(Session):
    """A session that notes which plans it was asked for."""

    asked: tuple[int, ...] = ()

    def plan(self, tp: int) -> Plan:
        self.asked += (tp,)
        return plan_of(tp)

    def calls(self, plan: Plan) -> tuple[UnitCalls, ...]:
        return CALLS


def made(model: Any, tp: int = 2, **options: Any) -> bool:
    """Whether a plan had to be made."""
    session = Asked(model, **options)
    assert cached_plan(session, tp) == Prepared(plan_of(tp).to_json(), CALLS)
    return bool(session.asked)


def test_an_equal_model_is_planned_once() -> None:
    assert made(MODEL)
    assert not made(MODEL)
    assert not made(build_model(config_of("gpt2")))


def test_whatever_could_change_a_plan_makes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(MODEL)
    assert made(MODEL, tp=4)
    other = config_of("gpt2")
    other.scale_attn_weights = False
    assert made(build_model(other))
    assert made(build_model(config_of("gpt2")).to(torch.bfloat16))
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "own.toml").write_text("")
    assert made(MODEL, rules=(tmp_path,))
    for wish in (
        {"settings": {"h.0": "replicate"}},
        {"sequence_parallel": True},
        {"gather_logits": False},
        {"tokens": 8},
    ):
        assert made(MODEL, **wish)
        assert not made(MODEL, **wish)
    assert made(MODEL, hardware="cpu-gloo")
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert made(MODEL)


def test_a_plan_that_cannot_be_read_is_made_again(folder: Path) -> None:
    assert made(MODEL)
    (file,) = folder.iterdir()
    whole = file.read_text()
    for text in (whole[:40], whole.replace('\\"tp\\": 2', '\\"tp\\": 4'), whole.replace('"unread"', '"read"')):
        assert text != file.read_text()
        file.write_text(text)
        assert made(MODEL)
        assert not made(MODEL)


def test_without_a_folder_to_write_to_plans_are_made(folder: Path) -> None:
    folder.write_text("a file")
    assert made(MODEL)
    assert made(MODEL)
