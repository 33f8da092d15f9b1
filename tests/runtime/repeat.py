"""What two ranks compute in a process of its own, as digests of every bit of it.

    python -m tests.runtime.repeat PRODUCT [compiled]

PRODUCT is the number of the product of few rows that the clock is said to favour in this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import torch
from transformers import LlamaConfig

import autotp
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.layers import products

STEPS = 3


def digest(values: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(values):
        found.update(values[name].detach().numpy().tobytes())
    return found.hexdigest()


def parallel() -> Any:
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    torch.manual_seed(0)
    return autotp.parallelize(build_model(config, meta=False))


@torch.no_grad()
def written(model: Any) -> dict[str, torch.Tensor]:
    """Of four prompts of one token each, all scores of what is written next."""
    ids = torch.arange(3, 7)[:, None]
    return {f"logits {i}": model(ids + i, use_cache=False).logits for i in range(2)}


def trained(model: Any) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        ids = (torch.arange(48).view(4, 12) * 7 + step) % 512
        optimizer.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return autotp.full_state_dict(model)


def compute(product: int, is_compiled: bool) -> dict[str, str]:
    """Runs on a rank: nobody asks for equal bits, then torch's switch does, then the variable."""
    favoured = products.PRODUCTS[product]
    products._seconds = lambda tried, value, weight: 1.0 if tried is favoured else 2.0  # type: ignore[assignment]
    found = {}
    model = parallel().eval()
    called = torch.compile(model) if is_compiled else model
    found["neither"] = digest(written(called))
    torch.use_deterministic_algorithms(True)
    found["torch's switch"] = digest(written(called))
    torch.use_deterministic_algorithms(False)
    os.environ[products.DETERMINISTIC] = "1"
    model = parallel()
    found["trained"] = digest(trained(model.train()))
    model.eval()
    found["the variable"] = digest(written(torch.compile(model) if is_compiled else model))
    return found


if __name__ == "__main__":
    print(json.dumps(run_ranks(compute, 2, int(sys.argv[1]), "compiled" in sys.argv)))
