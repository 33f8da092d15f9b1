"""What transformers records inside of blocks, by hooks, is what the dense model records."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autotp.checkpoint.full import full_gradients
from autotp.huggingface.models import build_model
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.groups import join_ranks
from autotp.session.parallel import cut_model
from autotp.session.pipeline import Session
from tests.families import FAMILIES, MIXTURES

IDS = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(0))
KINDS = ("logits", "attentions", "router_logits", "hidden_states")


def tensors(output: Any) -> Iterator[torch.Tensor]:
    for kind in KINDS:
        found = getattr(output, kind, None)
        yield from [found] if isinstance(found, torch.Tensor) else [each for each in found or () if each is not None]


def play(model: nn.Module, wanted: str, gradients: Any) -> list[list[torch.Tensor]]:
    """Four calls, of which every second records, and once more with the model told to."""
    calls: list[list[torch.Tensor]] = []
    for options in ({}, {wanted: True}, {}, {wanted: True}, {}):
        setattr(model.config, wanted, len(calls) == 4)
        model.zero_grad()
        found = list(tensors(model(IDS + len(calls), use_cache=False, **options)))
        torch.stack([each.square().mean() for each in found]).sum().backward()
        given = gradients(model)
        calls.append([*(each.detach() for each in found), *(given[name] for name in sorted(given))])
    return calls


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "wanted"),
    [("llama", "output_attentions"), ("llama", "output_hidden_states"), ("qwen2_moe", "output_router_logits")],
)
@pytest.mark.parametrize("tp", [2, pytest.param(3, marks=pytest.mark.sweep)])
def test_what_is_recorded_is_the_dense_models(name: str, wanted: str, tp: int) -> None:
    config = (FAMILIES | MIXTURES)[name].config()
    config._attn_implementation = "eager"  # the others give no weights of attention
    torch.manual_seed(0)
    dense = build_model(config, meta=False).double()
    for parameter in dense.parameters():
        nn.init.normal_(parameter, std=0.2)
    true = play(copy.deepcopy(dense), wanted, lambda model: {n: p.grad for n, p in model.named_parameters()})
    assert len(true[1]) == len(true[4]) > len(true[0])

    def rank_run(ranks: Ranks) -> list[list[torch.Tensor]]:
        model = copy.deepcopy(dense)
        cut_model(Session(model), ranks)
        join_ranks(model, ranks)
        return play(model, wanted, full_gradients)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "model.layers.* computes some calls with whole weights")
        for rank in simulate(tp, rank_run):
            torch.testing.assert_close(rank, true, rtol=1e-9, atol=1e-9)
