"""Does the cost model order plans as they are? Five pairs of plans of one model, estimated and run on two gloo ranks.

    python benchmarks/order.py

Each plan trains: forward and backward of the same tokens, in float32, one thread a rank. The steps of a pair's plans
alternate, so that both see the same machine; the medians are compared with the estimates on `cpu-gloo`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig

import autotp
from autotp.huggingface.models import build_model
from autotp.planner.plan import Plan
from autotp.runtime.groups.launch import run_ranks
from autotp.session.study import Study

RANKS, SEQUENCE, STEPS = 2, 256, 7
SMALL: Mapping[str, Any] = {"vocab_size": 8192, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA = {
    **SMALL,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
NEOX = {**SMALL, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8}
# Model, its settings, and what either plan of the pair leaves whole.
PAIRS: Sequence[tuple[str, Mapping[str, Any], tuple[str, ...], tuple[str, ...]]] = (
    ("llama", LLAMA, (), ("model.layers.*.mlp",)),
    ("llama", LLAMA, ("model.layers.*.self_attn",), ("model.layers.*.mlp",)),
    ("phi3", LLAMA, (), ("lm_head",)),
    ("gpt_neox", NEOX, (), ("gpt_neox.layers.*",)),
    ("llama", LLAMA, ("model.layers.*.self_attn",), ("model.layers.*", "lm_head")),
)


def main() -> None:
    print(f"{RANKS} ranks, one sequence of {SEQUENCE} tokens, median of {STEPS} steps")
    print(f"{'model':<10}{'left whole: first':<28}{'second':<32}{'estimated':>20}{'measured':>20}  order")
    agreed = 0
    for kind, settings, *whole in PAIRS:
        config = AutoConfig.for_model(kind, **settings)
        estimated, plans = [], []
        for patterns in whole:
            wanted = dict.fromkeys(patterns, "replicate")
            study = Study(config, hardware="cpu-gloo", tokens=SEQUENCE, settings=wanted)
            plans.append(study.plan(RANKS))
            estimated.append(study.estimate(plans[-1]).step.total)
        measured = run_ranks(steps, RANKS, kind, dict(settings), plans)[0]
        same = (estimated[0] < estimated[1]) == (measured[0] < measured[1])
        agreed += same
        names = (", ".join(patterns) or "nothing" for patterns in whole)
        cells = (f"{1e3 * a:.0f} and {1e3 * b:.0f} ms" for a, b in (estimated, measured))
        first, second = names
        one, two = cells
        print(f"{kind:<10}{first:<28}{second:<32}{one:>20}{two:>20}  {'agrees' if same else 'DIFFERS'}", flush=True)
    print(f"{agreed} of {len(PAIRS)} pairs agree")


def steps(kind: str, settings: dict[str, Any], plans: list[Plan]) -> list[float]:
    """Median seconds of a training step under each plan; runs on a rank."""
    models = []
    for plan in plans:
        torch.manual_seed(0)
        model = build_model(AutoConfig.for_model(kind, **settings), meta=False)
        models.append(autotp.parallelize(model, plan=plan))
    ids = torch.randint(3, 1000, (1, SEQUENCE))
    taken: list[list[float]] = [[] for _ in plans]
    for number in range(STEPS + 2):
        for model, seconds in zip(models, taken, strict=True):
            dist.barrier()
            start = time.perf_counter()
            model(input_ids=ids, use_cache=False).logits.sum().backward()
            dist.barrier()
            if number >= 2:  # the first ones trace
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in taken]


if __name__ == "__main__":
    main()
