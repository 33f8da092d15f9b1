"""Texts of code: that of torch is known by where it is, all other by what it does, also beside torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from autotp.capture.disk.texts import texts_in

SITE = Path(torch.__file__).parents[1]


def function(text: str, file: Path) -> Any:
    scope: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), scope)
    return scope["act"]


def test_code_beside_torch_is_known_by_what_it_does() -> None:
    for package in ("torchvision", "torch_other", "torchao", "mine"):
        one, other = (function(f"def act(t):\n    return t * {n}", SITE / package / "a.py") for n in (2, 3))
        assert texts_in(one) != texts_in(other)
        assert texts_in(one) == texts_in(function("def act(t):\n    return t * 2", SITE / "elsewhere" / "b.py"))


def test_code_of_torch_is_known_by_where_it_is() -> None:
    assert texts_in(torch.nn.functional.selu) != texts_in(torch.nn.functional.celu)
