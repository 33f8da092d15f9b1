"""Nothing in the package is about a kind of device."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from autotp.runtime.cut.moving import move

PACKAGE = Path(__file__).parents[1] / "autotp"
KINDS = re.compile(r"\b(is_)?(cuda|xpu|npu|hpu|mps|rocm)\b|nccl|xccl", re.IGNORECASE)


def test_no_file_names_a_kind_of_device_or_its_backend() -> None:
    assert not [path for path in PACKAGE.rglob("*.py") if KINDS.search(path.read_text(encoding="utf-8"))]


def test_moving_keeps_ties_attributes_and_what_has_no_data() -> None:
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "second": torch.nn.Linear(2, 2)})
    model["second"].weight = model["first"].weight
    model["first"].weight.note = "kept"  # type: ignore[assignment]
    model["second"].bias.requires_grad_(False)
    here = dict(model.named_parameters(remove_duplicate=False))
    move(model, torch.device("cpu"))
    assert all(here[name] is own for name, own in model.named_parameters(remove_duplicate=False))
    move(model, torch.device("meta"))
    there = dict(model.named_parameters(remove_duplicate=False))
    assert {own.device.type for own in there.values()} == {"meta"}
    assert there["first.weight"] is there["second.weight"]
    assert there["first.weight"].note == "kept"  # type: ignore[attr-defined]
    assert [own.requires_grad for own in there.values()] == [True, True, True, False]
    move(model, torch.device("cpu"))
    assert {own.device.type for own in model.parameters()} == {"meta"}
