"""Plans kept on disk: found again for an equal model only, and never needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from autotp.huggingface.models import build_model
from autotp.plan_cache import FOLDER_VARIABLE, cached_plan
from autotp.planner.plan import Plan
from tests.checkpoint.models import config_of

MODEL = build_model(config_of("gpt2"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


def plan_of(tp: int) -> Plan:
    return Plan(1, "GPT2LMHeadModel", "0", tp, "none", 4096, 2, (), ())


def made(model: Any, tp: int = 2, rules: tuple[Path, ...] = ()) -> bool:
    """Whether a plan had to be made."""
    calls = []

    def make() -> Plan:
        calls.append(tp)
        return plan_of(tp)

    assert cached_plan(model, tp, rules, make) == plan_of(tp)
    return bool(calls)


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
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert made(MODEL)


def test_a_plan_that_cannot_be_read_is_made_again(folder: Path) -> None:
    assert made(MODEL)
    (file,) = folder.iterdir()
    file.write_text(file.read_text()[:40])
    assert made(MODEL)
    assert not made(MODEL)


def test_without_a_folder_to_write_to_plans_are_made(folder: Path) -> None:
    folder.write_text("a file")
    assert made(MODEL)
    assert made(MODEL)
