"""Small checkpoints of the families under test, as transformers writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig

from autotp.huggingface.models import build_model
from autotp.huggingface.pretrained import quiet
from autotp.planner.plan import Plan
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.opening import open_checkpoint
from autotp.session.weights import place
from tests.families import FAMILIES, LLAMA_LIKE

# Seven heads and a vocabulary that no size divides; the head is tied to the embedding.
PADDED = {**LLAMA_LIKE, "hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 7, "vocab_size": 251}
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "padded_and_tied": ("llama", {**PADDED, "tie_word_embeddings": True}),
    "t5": ("t5", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 250}),
    "mixtral": ("mixtral", {**LLAMA_LIKE, "num_local_experts": 4}),
    "qwen2_moe": (
        "qwen2_moe",
        {**LLAMA_LIKE, "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    ),
}


def config_of(name: str) -> PretrainedConfig:
    if name in MORE:
        kind, settings = MORE[name]
        return AutoConfig.for_model(kind, **settings)
    return FAMILIES[name].config()


def write(name: str, folder: Path, max_shard_size: str = "50GB", dtype: torch.dtype = torch.float32) -> nn.Module:
    """Save a model with random weights and return it as transformers loads it."""
    torch.manual_seed(0)
    with quiet():
        model = build_model(config_of(name), meta=False).to(dtype)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        return type(model).from_pretrained(folder)


def simulated(
    folder: Path, tp: int, plan: Plan | None = None, run: Any = lambda model: model, **options: Any
) -> list[Any]:
    """Load on simulated ranks, and run something on each; `options` are those of a session."""
    opened = [open_checkpoint(folder) for _ in range(tp)]  # one after the other: transformers' loader knows no threads

    def on_rank(ranks: Ranks) -> Any:
        return run(place(lambda: opened[ranks.rank], ranks, plan, **options))

    return simulate(tp, on_rank)
