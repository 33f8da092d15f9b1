"""The tools people train with work on a parallel model as on the dense one: same numbers, no collective more or less."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.api import join_ranks
from autotp.axes.layout import Cut, Factor, Leaf
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.planner.make import make_plan
from autotp.planner.plan import Plan
from autotp.planner.survey import Survey, survey
from autotp.runtime.cut.origin import Origin
from autotp.runtime.cut.tensor import cut_in_place
from autotp.runtime.groups.log import CollectiveLog
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Float64, Verifier
from tests.families import FAMILIES

pytestmark = pytest.mark.matrix


@dataclass(frozen=True, eq=False)
class Subject:
    """A dense model in float64 and what parallelizing it takes."""

    dense: Any
    found: Survey
    plans: dict[int, tuple[Plan, Any]] = field(default_factory=dict)

    def planned(self, tp: int) -> tuple[Plan, Any]:
        if tp not in self.plans:
            plan = make_plan(self.dense, self.found, tp)
            self.plans[tp] = plan, make_compilers(plan, self.found)
        return self.plans[tp]

    def on_ranks(
        self, tp: int, run: Callable[[Any, Ranks], Any], dense: Any = None, *, exact: bool = True
    ) -> list[Any]:
        """Run a function of the parallel model (of one like the subject's) on simulated ranks."""
        plan, compilers = self.planned(tp)

        def on_rank(ranks: Ranks) -> Any:
            with Float64() if exact else nullcontext():
                model = apply_plan(copy.deepcopy(dense or self.dense), plan, ranks, compilers)
                join_ranks(model, ranks)
                return run(model, ranks)

        return simulate(tp, on_rank)


@functools.cache
def subject(name: str) -> Subject:
    torch.manual_seed(0)
    dense = build_model(FAMILIES[name].config(), meta=False).double()
    with Float64():
        return Subject(dense, survey(dense, examples_for(dense, None)))


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 250, (2, 11), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


def backward(model: Any, seed: int = 0) -> torch.Tensor:
    with Float64():
        loss: torch.Tensor = model(**batch(seed), use_cache=False).loss
        loss.backward()
    return loss.detach()


def trained(model: Any, steps: int, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Steps with two batches accumulated and clipped."""
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        backward(model, 2 * step)
        backward(model, 2 * step + 1)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def close(found: dict[str, Any], true: dict[str, Any]) -> bool:
    return all(torch.allclose(found[n], t, rtol=1e-9, atol=1e-11) for n, t in true.items() if t is not None)


def gradients(model: nn.Module) -> dict[str, Any]:
    return {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


@pytest.mark.sample(1)
# Two key/value heads on four ranks: parts of a fused weight are on two ranks each, the rest on one; on three, padding.
@pytest.mark.parametrize(("name", "tp"), [("phi3", 4), ("llama", 3), ("gpt2", 2)])
def test_norms_and_clipping_are_those_of_the_dense_model(name: str, tp: int) -> None:
    dense = copy.deepcopy(subject(name).dense)
    backward(dense)
    true = gradients(dense)
    clip = torch.nn.utils.clip_grad_norm_
    settings = [{}, {"foreach": True}, {"foreach": False}, {"norm_type": float("inf")}, {"norm_type": 1.0}]
    expected = [clip(dense.parameters(), 1e9, **own) for own in settings]
    each = {n: p.grad.norm() for n, p in dense.named_parameters()}
    clip(dense.parameters(), 0.1)

    def run(model: Any, ranks: Ranks) -> Any:
        backward(model)
        with ranks.logging() as log:
            norms = [clip(model.parameters(), 1e9, **own) for own in settings]
            own = {n: p.grad.norm() for n, p in model.named_parameters()}
        clip(model.parameters(), 0.1)
        return norms, own, autotp.full_gradients(model), log

    for norms, own, clipped, log in subject(name).on_ranks(tp, run):
        assert torch.allclose(torch.stack(norms), torch.stack(expected), rtol=1e-12)
        assert close(own, each)
        assert close(clipped, gradients(dense))
        assert not close(clipped, true)
        cut = sum(call.elements == 1 for call in log.calls) // 2  # by themselves: not foreach, and `own`
        assert [call.elements for call in log.calls if call.elements > 1] == [cut] * 4
        assert {(call.kind, call.phase) for call in log.calls} == {("all_reduce", "norm")}


def test_a_scaler_skips_a_step_on_all_ranks() -> None:
    def run(ranks: Ranks) -> tuple[list[float], float]:
        parameter = nn.Parameter(torch.ones(4))
        cut_in_place(parameter, Origin((Leaf(4, Cut((Factor(2, 1),), 4)),), ranks))
        optimizer, scaler = torch.optim.SGD([parameter], 1.0), torch.amp.GradScaler("cpu", init_scale=8.0)
        with torch._C.DisableTorchFunctionSubclass():
            scaler.scale((parameter * (float("inf") if ranks.rank else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return parameter.tolist(), scaler.get_scale()

    assert simulate(2, run) == [([1.0] * 4, 4.0)] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, 1e-2),
        lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
        lambda p: torch.optim.AdamW(p, 1e-2, foreach=True, weight_decay=0.3),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ],
)
def test_optimizers_accumulation_and_clipping(make: Any) -> None:
    dense = copy.deepcopy(subject("llama").dense)
    trained(dense, 3, make)

    def run(model: Any, ranks: Ranks) -> Any:
        trained(model, 3, make)
        return autotp.full_state_dict(model)

    for state in subject("llama").on_ranks(3, run):
        assert close(state, dense.state_dict())


def counted(log: CollectiveLog) -> Counter[str]:
    return Counter(f"{c.kind} {c.phase} {c.of}" for c in log.calls)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_repeats_the_forward_of_blocks_and_nothing_else(reentrant: bool) -> None:
    plan, _ = subject("llama").planned(2)
    block = plan.unit_of("model.layers.0")
    assert block is not None

    def run(model: Any, ranks: Ranks) -> tuple[Counter[str], Counter[str], bool]:
        model.train()
        with ranks.logging() as plain:
            backward(model)
        true = gradients(model)
        model.zero_grad()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        with ranks.logging() as again:
            backward(model)
        return counted(plain), counted(again), close(gradients(model), true)

    for plain, again, same in subject("llama").on_ranks(2, run):
        assert same
        planned = sum(len(u.instances) * u.count("backward") for u in plan.units)
        assert plain["all_reduce backward activation"] == planned
        # The last sum of a block's forward is what its backward needs no more: it may stop before it.
        repeated = len(block.instances) * (block.count("forward") - (0 if reentrant else 1))
        assert again - plain == Counter({"all_reduce forward activation": repeated})
        assert not plain - again


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable")
def test_a_model_that_is_checkpointed_already_is_planned_and_runs_as_any_other() -> None:
    dense = copy.deepcopy(subject("llama").dense).train()
    dense.gradient_checkpointing_enable()
    with Float64():
        marked = Subject(dense, survey(dense, examples_for(dense, None)))
    assert marked.planned(2)[0] == subject("llama").planned(2)[0]

    def run(model: Any, ranks: Ranks) -> tuple[Any, int]:
        with ranks.logging() as log:
            backward(model)
        return autotp.full_gradients(model), log.count("forward")

    plain = copy.deepcopy(subject("llama").dense)
    backward(plain)
    for own, forward in marked.on_ranks(2, run):
        assert close(own, gradients(plain))
        assert forward == 7  # three of blocks' halves and the table once, one in each block again


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wide", [False, True])
def test_narrow_floats_and_sums_in_float32(dtype: torch.dtype, wide: bool) -> None:
    """Weights in bfloat16, or in float32 under autocast: as near to float64 as the dense model, with sums of either width."""
    dense = copy.deepcopy(subject("llama").dense)
    expected = backward(dense)
    narrow = copy.deepcopy(subject("llama").dense).to(dtype)

    def step(model: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            loss: torch.Tensor = model(**batch(), use_cache=False).loss
        loss.backward()
        return loss.detach()

    def error(own: dict[str, Any]) -> float:
        true = gradients(dense)
        return max(float((own[n].double() - g).norm() / g.norm()) for n, g in true.items() if g.norm() > 1e-6)

    def run(model: Any, ranks: Ranks) -> Any:
        ranks.sum_in_float32 = wide
        with ranks.logging() as log:
            loss = step(model)
        sizes = {c.element_bytes for c in log.calls if c.kind == "all_reduce" and c.phase in ("forward", "backward")}
        return loss, autotp.full_gradients(model), sizes

    loss = step(narrow)
    for own, gradient, sizes in subject("llama").on_ranks(2, run, narrow.requires_grad_(), exact=False):
        assert abs(own - expected) < 2 * abs(loss - expected) + 1e-3
        assert error(gradient) < 2 * error(gradients(narrow)) < 0.2
        assert (2 in sizes) != wide


def test_frozen_parameters_cost_no_backward_collective() -> None:
    plan, _ = subject("qwen3").planned(4)

    def freeze(model: Any, of: int) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (name.startswith("model.layers.0") or "embed" in name) if of == 0 else of == 1)

    def run(model: Any, ranks: Ranks) -> list[Any]:
        found = []
        for of in (0, 1, 0):
            freeze(model, of)
            model.zero_grad()
            with ranks.logging() as log:
                backward(model)
            found.append((counted(log), autotp.full_gradients(model)))
        return found

    block = plan.unit_of("model.layers.0")
    assert block is not None
    frozen = copy.deepcopy(subject("qwen3").dense)
    freeze(frozen, 0)
    for start in (subject("qwen3").dense, frozen):
        for some, everything, again in subject("qwen3").on_ranks(4, run, start):
            assert some[0] == again[0]
            # The first block has no backward at all. The input of the second needs no gradient, but its norm's weight does.
            fewer = everything[0] - some[0]
            assert fewer["all_reduce backward parameter"] == block.count("backward", "parameter") > 0
            assert fewer["all_reduce backward activation"] == block.count("backward")
            for (_, own), of in ((some, 0), (everything, 1), (again, 0)):
                dense = copy.deepcopy(subject("qwen3").dense)
                freeze(dense, of)
                backward(dense)
                assert close(own, gradients(dense))
                assert all((own[n] is None) == (p.grad is None) for n, p in dense.named_parameters())


def test_a_model_that_nobody_has_any_more_is_freed() -> None:
    def run(model: Any, ranks: Ranks) -> list[Any]:
        backward(model)
        return [weakref.ref(model.lm_head), weakref.ref(model.lm_head.weight)]

    found = subject("llama").on_ranks(2, run)
    gc.collect()
    assert [ref() for refs in found for ref in refs] == [None] * 4


def test_a_copy_is_a_model_of_its_own() -> None:
    def run(model: Any, ranks: Ranks) -> Any:
        backward(model)
        twin = copy.deepcopy(model)
        assert twin.generate.__self__ is twin
        with torch.no_grad():
            for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs * 3, 0.5)
        before = autotp.full_state_dict(model)
        backward(twin)
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 1e9)
        return before, autotp.full_state_dict(twin), autotp.full_gradients(twin), norm

    dense = copy.deepcopy(subject("llama").dense)
    true = {n: t.clone() for n, t in dense.state_dict().items()}
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.lerp_(parameter * 3, 0.5)
    backward(dense)
    norm = torch.nn.utils.clip_grad_norm_(dense.parameters(), 1e9)
    for before, state, own, found in subject("llama").on_ranks(2, run):
        assert close(before, true)
        assert close(state, dense.state_dict())
        assert close(own, gradients(dense))
        assert torch.allclose(found, norm, rtol=1e-12)


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank correction that is trained."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.base(value) + self.up(self.down(value)) * 2.0


@pytest.mark.sweep
def test_low_rank_adapters_are_cut_with_what_they_correct() -> None:
    torch.manual_seed(0)
    model: Any = build_model(FAMILIES["llama"].config(), meta=False).requires_grad_(False)
    for layer in model.model.layers:
        for owner, name in ((layer.self_attn, "q_proj"), (layer.self_attn, "o_proj"), (layer.mlp, "gate_proj")):
            setattr(owner, name, Adapted(getattr(owner, name)))
    verifier = Verifier(model)
    block = verifier.plan(2).unit_of("model.layers.0")
    assert block is not None
    placed = {p.name.removeprefix("self_attn."): p.placement for p in block.parameters}
    assert [placed[n] for n in ("q_proj.base.weight", "q_proj.up.weight")] == ["column", "column"]
    assert [placed[n] for n in ("o_proj.base.weight", "o_proj.down.weight")] == ["row", "row"]
    assert {placed[n] for n in ("q_proj.down.weight", "o_proj.up.weight")} == {"replicated"}
    assert verifier.verify(2).ok

    dense = copy.deepcopy(model).double()
    backward(dense)

    def run(parallel: Any, ranks: Ranks) -> Any:
        backward(parallel)
        return autotp.full_gradients(parallel)

    for own in Subject(verifier.dense, verifier.session.found).on_ranks(2, run, copy.deepcopy(model).double()):
        assert close(own, gradients(dense))
        assert all((own[n] is None) == (p.grad is None) for n, p in dense.named_parameters())
