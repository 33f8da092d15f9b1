"""Real ranks never diverge: they draw the same tokens, whatever state their generators were in, and all run a pipeline."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from transformers import AutoConfig, PreTrainedModel, pipeline

import autotp
from autotp.huggingface.generation import CLOCK
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from examples.train_tiny_lm import make_tokenizer
from tests.families import LLAMA_LIKE

TOKENS = 200
PROMPT = torch.tensor([[7, 11, 13]])
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "top k": {"top_k": 5, "temperature": 1.5},
    "top p": {"top_p": 0.8, "top_k": 0},
    "beams": {"num_beams": 3, "max_new_tokens": 20},
}
TEXT = "One rank writes, two ranks write the same. " * 40


@dataclass(frozen=True)
class Outcome:
    """What one rank drew in each mode, wrote through a pipeline, and was told about a clock."""

    drawn: dict[str, list[int]]
    written: str
    refusal: str


def dense_model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **{**LLAMA_LIKE, "max_position_embeddings": 256, "vocab_size": 300})
    model = build_model(config, meta=False).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def draw(model: Any, seed: int) -> dict[str, list[int]]:
    """Tokens of every mode, one after the other."""
    torch.manual_seed(seed)
    settings = {"do_sample": True, "max_new_tokens": TOKENS, "eos_token_id": None, "pad_token_id": 0}
    with Float64():
        return {name: model.generate(PROMPT, **{**settings, **mode})[0].tolist() for name, mode in MODES.items()}


def write(model: Any) -> str:
    transformers.logging.set_verbosity_error()
    writer = pipeline("text-generation", model=model, tokenizer=make_tokenizer(TEXT, 300))
    with Float64():
        return writer("Two ranks", max_new_tokens=20, do_sample=False, eos_token_id=None)[0]["generated_text"]


def on_rank() -> Outcome:
    model = autotp.parallelize(dense_model())
    # Each rank's generator is elsewhere: the first one's counts.
    drawn, written = draw(model, seed=dist.get_rank()), write(model)
    with pytest.raises(autotp.UsageError) as refused:
        model.generate(PROMPT, max_time=1.0)
    return Outcome(drawn, written, str(refused.value))


@functools.cache
def expected() -> dict[str, list[int]]:
    return draw(dense_model(), seed=0)


@functools.cache
def outcomes() -> list[Outcome]:
    return run_ranks(on_rank, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", MODES)
def test_ranks_draw_the_dense_model_s_tokens(mode: str) -> None:
    tokens = expected()[mode]
    assert len(tokens) == 3 + MODES[mode].get("max_new_tokens", TOKENS)
    assert len(set(tokens)) > 10
    assert [outcome.drawn[mode] for outcome in outcomes()] == [tokens, tokens]


def test_a_pipeline_writes_the_same_on_every_rank() -> None:
    text = write(dense_model())
    assert text.startswith("Two ranks")
    assert [outcome.written for outcome in outcomes()] == [text, text]


def test_a_clock_of_its_own_is_refused_on_every_rank() -> None:
    assert [outcome.refusal for outcome in outcomes()] == [CLOCK, CLOCK]
