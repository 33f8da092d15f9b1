"""Models of litgpt: one configuration of each family, made small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litgpt.config import Config
from litgpt.model import GPT
from torch import nn

from .made import Made, made

# On top of the small sizes; experts and latent attention keep what the family says.
FAMILIES: dict[str, dict[str, Any]] = {
    "stablelm-base-alpha-3b": {},
    "stablelm-3b-4e1t": {},
    "pythia-14m": {},
    "falcon-7b": {"n_query_groups": 1},
    "falcon-40b": {"n_query_groups": 2},
    "Falcon3-1B-Base": {"n_query_groups": 2},
    "open_llama_3b": {},
    "Llama-2-7b-hf": {},
    "Llama-3-8B": {"n_query_groups": 2},
    "Llama-3.2-1B": {"n_query_groups": 2},
    "OLMo-1B-hf": {},
    "OLMo-2-1124-7B": {},
    "Gemma-2b": {"n_query_groups": 1},
    "Gemma-2-2b": {"n_query_groups": 2, "sliding_window_size": 8},
    "Gemma-3-1b-it": {"n_query_groups": 2, "sliding_window_size": 8},
    "CodeLlama-7b-hf": {},
    "Platypus2-7B": {},
    "FreeWilly2": {"n_query_groups": 2},
    "phi-1_5": {},
    "phi-2": {},
    "Phi-3-mini-4k-instruct": {},
    "phi-4": {"n_query_groups": 2},
    "Mistral-7B-v0.1": {"n_query_groups": 2},
    "Mixtral-8x7B-v0.1": {"n_query_groups": 2, "n_expert": 4},
    "tiny-llama-1.1b": {"n_query_groups": 2},
    "Llama-2-7b-chat-hf-function-calling-v2": {},
    "Qwen2.5-0.5B": {"n_query_groups": 2},
    "QwQ-32B": {"n_query_groups": 2},
    "Qwen3-0.6B": {"n_query_groups": 2},
    "Qwen3-30B-A3B": {"n_query_groups": 2, "n_expert": 4, "n_expert_per_token": 2, "moe_intermediate_size": 32},
    "salamandra-2b": {},
    "SmolLM2-135M": {"n_head": 9, "n_query_groups": 3, "n_embd": 72, "head_size": 8},
    "R1-Distill-Llama-8B": {"n_query_groups": 2},
}
SMALL = {
    "n_layer": 2,
    "n_head": 8,
    "n_embd": 64,
    "head_size": 8,
    "intermediate_size": 96,
    "block_size": 64,
    "vocab_size": 128,
    "padded_vocab_size": 128,
}


def _build(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        settings = {**SMALL, "n_query_groups": FAMILIES[name].get("n_head", 8), **FAMILIES[name]}
        return GPT(Config.from_name(name, **settings))

    return build


CASES: dict[str, Callable[[], Made]] = {
    name: made(_build(name), lambda numbers: numbers.ids(numbers.batch, 12 + numbers.more, below=128))
    for name in FAMILIES
}
