"""Generation with a cut cache: the parallel model writes what the dense one writes, left padding included."""

from __future__ import annotations

import copy

import pytest
import torch

from autotp.api import examples_for
from autotp.huggingface.models import build_model
from autotp.planner.make import make_plan
from autotp.planner.survey import survey
from autotp.rewrite.apply import apply_plan, make_compilers
from autotp.runtime.ranks import Ranks
from autotp.runtime.simulate import simulate
from autotp.verify import Float64
from tests.families import FAMILIES


@pytest.mark.parametrize("name", ["llama", "gpt2", "falcon_multi_query", "falcon_sequential", "bloom", "mpt"])
def test_greedy_tokens_are_the_same(name: str) -> None:
    torch.manual_seed(0)
    dense = build_model(FAMILIES[name].config(), meta=False).double().eval()
    for parameter in dense.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ids = torch.randint(3, 250, (2, 11))
    padded = torch.ones_like(ids)
    padded[0, :3] = 0
    found = survey(dense, examples_for(dense, None))
    plan = make_plan(dense, found, 4)
    compilers = make_compilers(plan, found)

    def write(model: torch.nn.Module) -> list[torch.Tensor]:
        settings = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        with Float64(), torch.no_grad():
            return [model.generate(ids, attention_mask=mask, **settings) for mask in (torch.ones_like(ids), padded)]

    def on_rank(ranks: Ranks) -> list[torch.Tensor]:
        return write(apply_plan(copy.deepcopy(dense), plan, ranks, compilers))

    expected = write(dense)
    assert expected[0].shape == (2, 11 + 24)
    for written in simulate(4, on_rank):
        assert all(torch.equal(mine, true) for mine, true in zip(written, expected, strict=True))
