"""`verify` as a judge: a right model is right, and what it cannot judge is said in one line, before long work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.errors import UsageError
from autotp.verify import Verifier
from tests.families import FAMILIES

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    """Equal blocks, the first of which is given data."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Counts(Block):
    """Has a parameter of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.arange(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.count.sum()


class Picks(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).argmax(-1)


class Sparse(Block):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.eye(8).to_sparse())


class Writes(Block):
    """Changes what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.add_(1))


@pytest.mark.parametrize("kind", [Blocks, Counts, Writes])
@pytest.mark.parametrize("wanting", [False, True])
def test_a_right_model_is_right_whatever_its_inputs_want(kind: Callable[[], nn.Module], wanting: bool) -> None:
    if kind is Writes and wanting:
        return  # torch refuses that of the dense model
    report = autotp.verify(kind(), 2, example=X.clone().requires_grad_(wanting))
    report.raise_for_failure()
    assert report.planned["all_reduce forward activation"] == (3 if kind is Blocks else 1)


def scripted() -> Any:
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        return torch.jit.trace(Block(), X)


def dotted() -> nn.Module:
    block = Block()
    block._modules["a.b"] = nn.Linear(8, 8)
    return block


UNFIT: dict[str, tuple[Callable[[], Any], str]] = {
    "no gradient": (Picks, "gives nothing that has a gradient"),
    "sparse": (Sparse, "table is a parameter with the layout sparse_coo"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(32), nn.Linear(32, 8)), "0.weight is a lazy parameter"),
    "scripted": (scripted, "is a ScriptModule"),
    "dotted": (dotted, "Block has a module with a dot in its name, 'a.b'"),
}


@pytest.mark.parametrize(("make", "message"), UNFIT.values(), ids=UNFIT.keys())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_judged_is_one_line(make: Callable[[], Any], message: str) -> None:
    takers: list[Callable[[Any], object]] = [lambda model: autotp.verify(model, 2, example=X)]
    if make is not Picks:
        takers += [lambda m: autotp.plan(m, 2, example=X), lambda m: autotp.diff(m, 2, example=X), autotp.parallelize]
    for take in takers:
        with pytest.raises(UsageError, match=message) as caught:
            take(make())
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tp", [65, 1000, 10**9])
def test_more_ranks_than_one_process_simulates_are_refused_at_once(tp: int) -> None:
    with pytest.raises(UsageError, match=f"verify runs all {tp} ranks in this process, and at most 64"):
        autotp.verify(Blocks(), tp, example=X)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_plan_that_keeps_results_cut_is_judged(family: str) -> None:
    """What a rank keeps cut only all ranks together make whole, so they do it where they run."""
    verifier = Verifier(FAMILIES[family].config())
    plan = verifier.plan(2)
    kept = replace(plan, units=tuple(replace(unit, keep=True) for unit in plan.units))
    assert verifier.verify(2, kept).exact
