"""How far tensors are from the dense model's: relative, on any rank, and infinite for what is missing or no number."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import autotp
from autotp.verify.report import Difference, compare, worst_of
from autotp.verify.verifier import Verifier

INF, NAN = math.inf, math.nan


def error(true: list[float], found: list[float] | None, scale: float = 0.0) -> float:
    given = {} if found is None else {"x": torch.tensor(found, dtype=torch.float64)}
    scales = {"y": torch.tensor([scale], dtype=torch.float64)} if scale else {}
    (difference,) = compare({"x": torch.tensor(true, dtype=torch.float64)}, given, scales, "call 1")
    return difference.error


@pytest.mark.parametrize(
    ("true", "found", "expected"),
    [
        ([4.0, -8.0], [4.0, -8.0], 0),
        ([4.0, -8.0], [4.0, -7.0], 0.125),
        ([INF, 2.0], [INF, 3.0], 0.5),
        ([INF, 2.0], [-INF, 2.0], INF),
        ([1.0, 2.0], [NAN, 2.0], INF),
        ([1.0], [INF], INF),
        ([1.0, 2.0], [1.0], INF),
        ([1.0], None, INF),
        ([], [], 0),
    ],
)
def test_difference(true: list[float], found: list[float] | None, expected: float) -> None:
    assert min(error(true, found), 1e300) == min(expected, 1e300)


def test_what_vanishes_is_measured_by_the_others() -> None:
    assert error([1e-12], [2e-12], scale=4.0) == pytest.approx(2.5e-13)
    assert error([0.0], [3.0]) == 3


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.complex128, torch.float16])
def test_every_dtype(dtype: torch.dtype) -> None:
    true, found = torch.tensor([1, 1, 0]).to(dtype), torch.tensor([1, 0, 0]).to(dtype)
    (difference,) = compare({"x": true}, {"x": found}, {}, "")
    assert difference.error > 0
    assert compare({"x": true}, {"x": true.clone()}, {}, "")[0].error == 0


def test_the_worst_of_all_groups() -> None:
    groups = [[Difference("x", 0.0)], [Difference("x", NAN)], [Difference("x", 1.0)]]
    assert math.isnan(worst_of(groups)[0].error)
    assert worst_of([[Difference("x", 0.0)], [Difference("x", 2.0)]])[0].error == 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("of", ["outputs", "gradients"])
def test_one_rank_that_is_wrong_is_seen(rank: int, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Verifier.parallel_run

    def parallel_run(self, parallel, call, ranks):  # type: ignore[no-untyped-def]
        found = run(self, parallel, call, ranks)
        tensor = next(iter(getattr(found, of).values()))
        if ranks.rank == rank:
            tensor.add_(1)
        return found

    monkeypatch.setattr(Verifier, "parallel_run", parallel_run)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    report = autotp.verify(model, tp=2, example=(torch.randn(2, 8),))
    assert not report.exact
    assert report.worst()[of == "gradients"].error > 1e-3
