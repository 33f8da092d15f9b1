"""Bags of words: a table whose rows are spread over ranks, bags of any length, empty ones too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.parallel import cut_model
from autotp.session.pipeline import Session

WORDS, WIDTH = 22, 6


class Bags(nn.Module):
    """Embeds bags and maps them; `weighed` also with a weight for every word."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.EmbeddingBag(WORDS, WIDTH, dtype=torch.float64, **options)
        self.out = nn.Linear(WIDTH, 4, dtype=torch.float64)

    def forward(self, words: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None) -> torch.Tensor:
        return self.out(self.table(words, offsets, per_sample_weights=weights)).tanh()


def call(seed: int, offsets: list[int] | None, count: int, weighed: bool) -> tuple[Any, ...]:
    drawn = torch.Generator().manual_seed(seed)
    shape = (count,) if offsets is not None else (3, count)
    words = torch.randint(0, WORDS, shape, generator=drawn)
    weights = torch.rand(shape, dtype=torch.float64, generator=drawn).requires_grad_() if weighed else None
    return words, None if offsets is None else torch.tensor(offsets), weights


def results(model: nn.Module, calls: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    found = []
    for words, offsets, weights in calls:
        weights = None if weights is None else weights.detach().clone().requires_grad_()
        out = model(words, offsets, weights)
        (out * torch.arange(4.0)).square().sum().backward()
        found += [out.detach(), *([] if weights is None else [weights.grad])]
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "max": {"mode": "max"},
    "padding": {"mode": "mean", "padding_idx": 3},
    "last offset": {"mode": "sum", "include_last_offset": True},
    "counted": {"mode": "mean", "scale_grad_by_freq": True},
}


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_bags_are_the_dense_ones(name: str, tp: int) -> None:
    options = OPTIONS[name]
    dense = Bags(**options)
    weighed = options["mode"] == "sum"
    ragged = [([0, 4, 4, 9], 12), ([0, 0, 1], 7), ([0, 5, 11, 11], 11)]
    if options.get("include_last_offset"):
        ragged = [([*offsets, count], count) for offsets, count in ragged]
    calls = [call(seed, offsets, count, weighed) for seed, (offsets, count) in enumerate(ragged)]
    calls += [call(9, None, 5, weighed), call(8, None, 2, weighed)]
    own = copy.deepcopy(dense)
    true = results(own, calls)
    gradients = {n: p.grad for n, p in own.named_parameters()}

    def on_rank(ranks: Ranks) -> tuple[list[torch.Tensor], dict[str, Any], int]:
        model = copy.deepcopy(dense)
        cut_model(Session(model, example=autotp.Arguments(*calls[0])), ranks)
        found = results(model, calls)
        return found, autotp.full_gradients(model), model.table.weight.local().shape[0] if cut else WORDS

    cut = name in ("sum", "mean")
    for found, own_gradients, rows in simulate(tp, on_rank):
        assert rows < WORDS or not cut
        for part, whole in zip(found, true, strict=True):
            torch.testing.assert_close(part, whole, rtol=1e-12, atol=1e-12)
        for parameter, gradient in gradients.items():
            torch.testing.assert_close(own_gradients[parameter], gradient, rtol=1e-12, atol=1e-12)
