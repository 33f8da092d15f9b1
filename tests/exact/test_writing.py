"""Generation on real ranks: families write the dense model's tokens, at the planned collectives, with a cut cache.

A sweep runs every fourth on two ranks, `make long` all on four.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Cache, EncoderDecoderCache

import autotp
from autotp.checkpoint.full import state_of
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.log import CollectiveLog
from tests.families import WRITERS

NEW = 64


@dataclass(frozen=True)
class Text:
    """What one rank wrote: tokens, heads of every cache layer, collectives, elements of every gather."""

    tokens: torch.Tensor
    heads: tuple[int, ...]
    counted: dict[str, int]
    planned: dict[str, int]
    gathered: tuple[int, ...]


def model_of(name: str) -> nn.Module:
    """A float64 model whose weights are the same in every process."""
    dense = build_model(WRITERS[name].config(), meta=False).double().eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in dense.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return dense


def prompt(model: nn.Module) -> dict[str, torch.Tensor]:
    """Two prompts, the first padded on the left; features for a model that hears."""
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "input_features":
        return {"input_features": torch.randn(2, 16, 40, generator=generator, dtype=torch.float64)}
    ids = torch.randint(3, 250, (2, 19), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def write(model: Any) -> tuple[torch.Tensor, Cache]:
    with torch.no_grad():
        written = model.generate(
            **prompt(model),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
        )
    return written.sequences, written.past_key_values


def write_all(names: list[str]) -> list[Text]:
    """Runs on a rank."""
    return [_write_in_parallel(name) for name in names]


def _write_in_parallel(name: str) -> Text:
    model = autotp.parallelize(model_of(name))
    state = state_of(model)
    with state.ranks.logging() as log:
        tokens, cache = write(model)
    planned = Counter[str]()
    for unit in state.plan.units:
        passes = sum(1 if ".encoder." in f".{path}" else NEW for path in unit.instances)
        for c in unit.collectives:
            if c.phase == "forward":
                planned[c.kind] += passes
    return Text(tokens, heads(cache), counts(log), dict(planned), gathered(log))


def heads(cache: Cache | None) -> tuple[int, ...]:
    if cache is None:  # the family reads the whole text again for every token
        return ()
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    return tuple(layer.keys.shape[1] for layer in own.layers)


def counts(log: CollectiveLog) -> dict[str, int]:
    return dict(Counter(call.kind for call in log.calls))


def gathered(log: CollectiveLog) -> tuple[int, ...]:
    return tuple(call.elements for call in log.calls if call.kind == "all_gather")


@pytest.mark.sweep
@pytest.mark.parametrize("tp", [2, pytest.param(4, marks=pytest.mark.long)])
def test_tokens_of_every_family_are_the_dense_models(tp: int) -> None:
    names = list(WRITERS)[:: 1 if tp > 2 else 4]
    ranks = run_ranks(write_all, tp, names, limit_s=600)
    for number, name in enumerate(names):
        dense = model_of(name)
        expected, cache = write(dense)
        whole = heads(cache)
        vocabulary = dense.get_output_embeddings().weight.shape[0]
        for texts in ranks:
            text = texts[number]
            assert torch.equal(text.tokens, expected), name
            assert text.heads == tuple(math.ceil(count / min(tp, count)) for count in whole), name
            assert text.counted == text.planned, name
            # The head's logits for the last position of each of the two texts, and no more.
            assert Counter(text.gathered)[2 * math.ceil(vocabulary / tp)] == NEW, name


@pytest.mark.sweep
def test_programs_grow_neither_with_the_text_nor_with_depth() -> None:
    config = copy.deepcopy(WRITERS["llama"].config())
    counted = []
    for layers, new in ((2, 8), (5, 20)):
        config.num_hidden_layers = layers
        counted.append(run_ranks(_programs, 2, config, new)[0])
    assert counted[0] == counted[1]


def _programs(config: Any, new: int) -> int:
    model = autotp.parallelize(build_model(config, meta=False))
    model.generate(torch.randint(3, 250, (2, 7)), max_new_tokens=new, do_sample=False, eos_token_id=None)
    compilers = {id(m.forward.compiler): m.forward.compiler for m in model.modules() if hasattr(m.forward, "compiler")}
    return sum(len(known) for compiler in compilers.values() for known in compiler.programs.values())
