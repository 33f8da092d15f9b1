"""Training steps on simulated ranks beside the dense model: every loss, every parameter at the end, the padding.

    python benchmarks/steps.py --steps 200 [FAMILY ...]

In float64 they agree to rounding. In float32 and bfloat16 rounding grows from step to step, and how much it does is known
from dense runs that take their sums in another order:

    python benchmarks/steps.py --dtype bfloat16 [FAMILY ...]
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

import autotp
from autotp.api import join_ranks
from autotp.checkpoint.full import state_of
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.planner.make import make_plan
from autotp.planner.survey import Survey, survey
from autotp.runtime.collectives.slices import padding
from autotp.runtime.cut.origin import parts_only
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Float64
from benchmarks.regrouped import Regrouped

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 101,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 101, "n_positions": 32, **TOKENS}
# Two key/value heads, fewer than ranks; a vocabulary and heads that do not divide; tied and untied tables.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, **TOKENS},
    "gpt2": {**GPT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "phi3": {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, **TOKENS},
    "gptj": {**GPT, "rotary_dim": 4},
    "bert": {
        **SIZES,
        "num_attention_heads": 4,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "architectures": ["BertForMaskedLM"],
    },
    "t5": {
        **{"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
        **{"vocab_size": 101, "dropout_rate": 0.0, "decoder_start_token_id": 0},
    },
}


@dataclass(frozen=True)
class Run:
    """The losses of a training run and the whole parameters at its end; the largest entry in the padding of any."""

    losses: torch.Tensor
    parameters: Mapping[str, torch.Tensor]
    padding: float = 0.0


@dataclass(frozen=True)
class Difference:
    """Largest relative difference of a loss, largest difference of a parameter, largest entry in the padding."""

    loss: float
    parameter: float
    padding: float


class Steps:
    """One dense model trained for some steps, to compare parallel ones with."""

    def __init__(self, name: str, steps: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model: Any = build_model(AutoConfig.for_model(name, **FAMILIES[name]), meta=False).to(dtype).train()
        self.steps, self.dtype = steps, dtype
        with self.precision():
            self.found: Survey = survey(self.model, examples_for(self.model, None))
            dense = copy.deepcopy(self.model)
            self.dense = Run(self.train(dense), {n: p.detach() for n, p in dense.named_parameters()})

    def precision(self) -> AbstractContextManager[Any]:
        """In float64 everything is, whatever a model's own code asks for."""
        return Float64() if self.dtype == torch.float64 else nullcontext()

    def train(self, model: Any) -> torch.Tensor:
        """Train a model, a new batch every step; returns the losses."""
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1)
        numbers, losses = torch.Generator().manual_seed(1), []
        for _ in range(self.steps):
            ids = torch.randint(3, 101, (2, 9), generator=numbers)
            loss = model(input_ids=ids, labels=ids.masked_fill(ids % 4 == 0, -100)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses)

    def parallel(self, tp: int) -> list[Run]:
        """The same on simulated ranks."""
        plan = make_plan(self.model, self.found, tp)
        compilers = make_compilers(plan, self.found)

        def on_rank(ranks: Ranks) -> Run:
            with self.precision():
                model = apply_plan(copy.deepcopy(self.model), plan, ranks, compilers)
                join_ranks(model, ranks)
                return Run(self.train(model), autotp.full_state_dict(model), largest_padding(model))

        return simulate(tp, on_rank)

    def regrouped(self, seed: int, groups: int) -> torch.Tensor:
        """The losses of a dense run that takes its sums in another order."""
        with self.precision(), Regrouped(seed, groups):
            return self.train(copy.deepcopy(self.model))

    def orders(self, count: int) -> list[float]:
        """The gap of every two of the dense run and so many others that take their sums in other orders."""
        runs = [self.dense.losses, *(self.regrouped(seed, 2 + seed % 3) for seed in range(count))]
        return [gap(second, first) for first, second in itertools.combinations(runs, 2)]

    def compare(self, tp: int) -> Difference:
        """The worst of all ranks beside the dense model."""
        runs = self.parallel(tp)
        losses = [gap(run.losses, self.dense.losses) for run in runs]
        parameters = [
            float((run.parameters[n] - p).detach().abs().max())
            for run in runs
            for n, p in self.dense.parameters.items()
        ]
        return Difference(max(losses), max(parameters), max(run.padding for run in runs))


def gap(losses: torch.Tensor, others: torch.Tensor) -> float:
    """The largest difference of a loss of one run from another's, relative to that."""
    return float(((losses - others) / others).abs().max())


def largest_padding(model: nn.Module) -> float:
    """The largest entry in the padding of any parameter on this rank."""
    state, largest = state_of(model), 0.0
    with parts_only():
        for name, parameter in model.named_parameters():
            for dim, layout in enumerate(state.layouts.get(name, ())):
                beyond = parameter.detach().index_select(dim, padding(layout, state.ranks.rank))
                largest = max(largest, float(beyond.abs().max()) if beyond.numel() else 0.0)
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=[*FAMILIES], metavar="FAMILY")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tp", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--dtype", choices=["float64", "float32", "bfloat16"], default="float64")
    parser.add_argument("--orders", type=int, default=8, help="further dense runs, other than in float64")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.dtype != "float64":
        compare_rounding(given)
        return
    print(f"{given.steps} AdamW steps in float64    loss, relative   parameters   padding   seconds")
    for name in given.families:
        steps = Steps(name, given.steps, seed=given.seed)
        for tp in given.tp:
            start = time.perf_counter()
            found = steps.compare(tp)
            seconds = time.perf_counter() - start
            print(
                f"{name:8} tp {tp} {found.loss:30.1e} {found.parameter:12.1e} {found.padding:9g} {seconds:9.0f}",
                flush=True,
            )


def compare_rounding(given: argparse.Namespace) -> None:
    """How far parallel runs are from the dense one, and how far dense ones are that take their sums in another order."""
    print(
        f"{given.steps} AdamW steps in {given.dtype}, worst loss gap    two dense runs         "
        + "    ".join(f"tp {tp}" for tp in given.tp)
    )
    for name in given.families:
        steps = Steps(name, given.steps, getattr(torch, given.dtype), given.seed)
        orders = steps.orders(given.orders)
        gaps = [steps.compare(tp).loss for tp in given.tp]
        print(
            f"{name:8} {min(orders):45.1e} to {max(orders):.1e} " + " ".join(f"{gap:7.1e}" for gap in gaps), flush=True
        )


if __name__ == "__main__":
    main()
