"""Does the cost model order plans as they are? Ten pairs of plans, estimated and run on two gloo ranks.

    python benchmarks/order.py

First this machine is measured, as `autotp calibrate` does it, and plans are ranked by that. The runs of a pair's plans alternate,
and so does which goes first, so that both see the same machine; the least times are compared, since other programs can only
lengthen them. All is in float32, with one thread a rank.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import autotp
from autotp.huggingface.models import build_model
from autotp.planner.cost import Workload
from autotp.planner.make import make_plan
from autotp.planner.objective import objective_of
from autotp.planner.plan import Plan
from autotp.runtime.groups.launch import run_ranks
from autotp.session.calibrate import calibrate, write_node
from autotp.session.study import Study

RANKS, RUNS, SHORT_RUNS, FIRST, BYTES, NODE, ENOUGH_GIB = 2, 41, 1001, 3, 4, "this-machine", 2.0**20
SMALL: Mapping[str, Any] = {"vocab_size": 8192, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
WIDE = {**SMALL, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8}
GROUPED = {**WIDE, "num_key_value_heads": 4}
NARROW = {**SMALL, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8}
FLAT = {"num_hidden_layers": 1}  # so that what an embedding's sum takes is more than a hundredth
LATENT = {
    **NARROW,
    "num_key_value_heads": 8,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 2,
    "num_experts_per_tok": 2,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}


@dataclass(frozen=True)
class Work:
    """So many sequences of so many tokens: a training step of these, a forward, or one more token of each."""

    phase: str
    batch: int
    sequence: int


@dataclass(frozen=True)
class Wish:
    """How a plan of a pair is asked for: `whole` is what it leaves whole."""

    objective: str = "balanced"
    whole: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.whole) or {"balanced": "default", "time": "least time"}.get(
            self.objective, self.objective
        )


@dataclass(frozen=True)
class Pair:
    """Two plans of one model for some work."""

    kind: str
    settings: Mapping[str, Any] = field(repr=False)
    work: Work
    first: Wish
    second: Wish


TRAINING, DECODE = Work("training", 1, 256), Work("decode", 4, 128)
PAIRS: Sequence[Pair] = (
    Pair("llama", GROUPED, TRAINING, Wish(), Wish(whole=("model.layers.*.mlp",))),
    Pair("llama", GROUPED, TRAINING, Wish(whole=("model.layers.*.self_attn",)), Wish(whole=("model.layers.*.mlp",))),
    Pair("phi3", GROUPED, TRAINING, Wish(), Wish(whole=("lm_head",))),
    Pair("gpt_neox", WIDE, TRAINING, Wish(), Wish(whole=("gpt_neox.layers.*",))),
    Pair(
        "llama", GROUPED, TRAINING, Wish(whole=("model.layers.*.self_attn",)), Wish(whole=("model.layers.*", "lm_head"))
    ),
    Pair("llama", {**NARROW, **FLAT, "num_key_value_heads": 4}, DECODE, Wish("time"), Wish()),
    Pair("gpt_neox", {**NARROW, **FLAT}, DECODE, Wish("time"), Wish()),
    Pair("deepseek_v3", LATENT, DECODE, Wish("time"), Wish("memory")),
    Pair("deepseek_v3", LATENT, Work("prefill", 1, 16), Wish("time"), Wish("memory")),
    Pair("llama", {**NARROW, **FLAT, "num_key_value_heads": 4}, Work("prefill", 1, 16), Wish("time"), Wish()),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        rules = Path(temporary)
        node = run_ranks(calibrate, RANKS, NODE)[0].node
        write_node(node, rules)
        runs = f"least of {RUNS} training steps, and of {SHORT_RUNS:,} runs without a backward"
        print(f"{RANKS} ranks, {runs}; {node.tflops_bf16 * 1e3:.1f} GFLOPS, {node.memory_gbps:.1f} GB/s of memory,")
        print(f"collectives {node.latency_us:.0f} us + {node.hop_us:.0f} us a step and {node.link_gbps:.2f} GB/s")
        print(f"{'model':<12}{'work':<18}{'first':<26}{'second':<34}{'estimated':>20}{'measured':>20}  order")
        agreed = sum(compare(pair, rules) for pair in PAIRS)
    print(f"{agreed} of {len(PAIRS)} pairs agree")


def compare(pair: Pair, rules: Path) -> bool:
    """Print what a pair's plans are estimated at, and what they take. Returns if the order is the same."""
    plans, estimated = zip(*(planned(pair, wish, rules) for wish in (pair.first, pair.second)), strict=True)
    measured = run_ranks(least, RANKS, pair, plans, rules, limit_s=900)[0]
    same = (estimated[0] < estimated[1]) == (measured[0] < measured[1])
    cells = (f"{1e3 * a:.1f} and {1e3 * b:.1f} ms" for a, b in (estimated, measured))
    work = f"{pair.work.phase} {pair.work.batch} x {pair.work.sequence}"
    one, two = cells
    row = f"{pair.kind:<12}{work:<18}{pair.first!s:<26}{pair.second!s:<34}{one:>20}{two:>20}"
    print(f"{row}  {'agrees' if same else 'DIFFERS'}", flush=True)
    return same


def planned(pair: Pair, wish: Wish, rules: Path) -> tuple[Plan, float]:
    """A plan, and the seconds that it is estimated at."""
    work = pair.work
    study = Study(
        AutoConfig.for_model(pair.kind, **pair.settings),
        hardware=NODE,
        rules=[rules],
        objective=wish.objective,
        settings=dict.fromkeys(wish.whole, "replicate"),
    )
    study.workload = Workload(work.sequence if work.phase == "decode" else work.batch * work.sequence, BYTES)
    objective = None
    if wish.objective == "time":
        objective = objective_of("time", work.phase, ENOUGH_GIB, study.machine, study.workload)
        assert objective is not None
        objective = replace(objective, phases=tuple(_of_batch(phase, work) for phase in objective.phases))
    plan = make_plan(study.module, study.found, RANKS, study.machine, study.workload, objective=objective)
    found = study.estimate_of(plan, work.batch, work.sequence)
    return plan, {"training": found.step, "prefill": found.forward, "decode": found.token}[work.phase].total


def _of_batch(phase: Any, work: Work) -> Any:
    return replace(phase, batch=work.batch) if work.phase == "decode" else phase


def least(pair: Pair, plans: Sequence[Plan], rules: Path) -> list[float]:
    """The least seconds of the work under each plan; runs on a rank."""
    runs: list[Callable[[], Any]] = []
    for plan in plans:
        torch.manual_seed(0)
        model = build_model(AutoConfig.for_model(pair.kind, **pair.settings), meta=False)
        runs.append(running(autotp.parallelize(model, plan=plan, rules=[rules]), pair.work))
    taken: list[list[float]] = [[] for _ in plans]
    for number in range(FIRST + (RUNS if pair.work.phase == "training" else SHORT_RUNS)):
        for place in sorted(range(len(runs)), reverse=number % 2 == 1):
            dist.barrier()
            start = time.perf_counter()
            runs[place]()
            dist.barrier()
            if number >= FIRST:  # the first ones trace, and write the checks of later ones
                taken[place].append(time.perf_counter() - start)
    return list(map(min, taken))


def running(model: Any, work: Work) -> Callable[[], Any]:
    """What runs some work of a model once."""
    ids = torch.arange(3, 3 + work.batch * work.sequence).reshape(work.batch, work.sequence) % 1000 + 3
    if work.phase == "training":
        return lambda: model(input_ids=ids, use_cache=False).logits.sum().backward()
    if work.phase == "prefill":
        return torch.no_grad()(lambda: model(input_ids=ids, use_cache=False))
    with torch.no_grad():
        kept = model(input_ids=ids, use_cache=True).past_key_values

    def one_more() -> None:
        model(input_ids=ids[:, :1], past_key_values=kept, use_cache=True)
        kept.crop(-1)  # so that each run reads as much

    return torch.no_grad()(one_more)


if __name__ == "__main__":
    main()
