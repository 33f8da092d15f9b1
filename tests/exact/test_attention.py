"""Attention functions behind Python: one opaque node cut over heads, run for real, as exact as a traced one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import autotp
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.planner.make import make_plan
from autotp.planner.survey import survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from tests.families import WRITERS

pytestmark = [  # how transformers asks for block masks, and that flex attention runs its plain operators
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
]
seen: set[tuple[int, int]] = set()


def reads_values(module: Any, query: torch.Tensor, key: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A user's function that cannot be traced: it looks at numbers."""
    if not bool(torch.isfinite(query).all()):
        raise ValueError("a query is not finite")
    seen.add((query.shape[1], key.shape[1]))
    return sdpa_attention_forward(module, query, key, *args, **kwargs)


AttentionInterface.register("reads_values", reads_values)
AttentionMaskInterface.register("reads_values", sdpa_mask)


def config_of(name: str, implementation: str) -> Any:
    config = WRITERS[name].config()
    config._attn_implementation = implementation
    return config


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "tp", "heads"),
    [("gpt2", 2, (2, 2)), ("llama", 2, (4, 1)), ("llama", 4, (4, 1)), ("qwen3", 4, (4, 1)), ("mistral", 2, (4, 1))],
)
def test_a_users_function_runs_on_a_ranks_heads(name: str, tp: int, heads: tuple[int, int]) -> None:
    """With fewer key heads than ranks it gets whole groups, since it may count on their size."""
    model = build_model(config_of(name, "reads_values"), meta=False).double()
    seen.clear()
    autotp.verify(model, tp).raise_for_failure()
    assert heads in seen


def write(model: Any, count: int) -> torch.Tensor:
    ids = torch.randint(3, 250, (2, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with torch.no_grad():
        written: torch.Tensor = model.generate(
            ids, attention_mask=mask, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return written


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "implementation", "tp", "count"),
    [
        ("llama", "reads_values", 2, 16),
        ("llama", "eager", 2, 16),
        ("llama", "sdpa", 2, 16),
        ("llama", "flex_attention", 2, 2),  # half a second a token
        pytest.param("llama", "flex_attention", 4, 2, marks=pytest.mark.sweep),
        pytest.param("mistral", "flex_attention", 2, 3, marks=pytest.mark.sweep),
    ],
)
def test_the_same_tokens_with_every_implementation(name: str, implementation: str, tp: int, count: int) -> None:
    torch.manual_seed(0)
    dense = build_model(config_of(name, implementation), meta=False).double()
    found = survey(dense, examples_for(dense, None))
    plan = make_plan(dense, found, tp)
    compilers = make_compilers(plan, found)

    def on_rank(ranks: Ranks) -> torch.Tensor:
        return write(apply_plan(copy.deepcopy(dense), plan, ranks, compilers), count)

    with torch.compiler.set_stance("force_eager"):  # flex attention's CPU kernels have no float64, its operators do
        expected = write(dense, count)
        assert all(torch.equal(written, expected) for written in simulate(tp, on_rank))
