"""Training on real ranks: dropout, compiled steps, and a second mesh dim for DDP and FSDP2 around a parallel model."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import autotp
from autotp.errors import UsageError
from autotp.huggingface.models import build_model
from autotp.runtime.cut.tensor import CutTensor
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import FAMILIES

pytestmark = pytest.mark.matrix

STEPS = 3


def dense_model(name: str = "llama", **settings: Any) -> Any:
    torch.manual_seed(0)
    config = FAMILIES[name].config()
    config.update(settings)
    return build_model(config, meta=False).double().train()


def batch(step: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 250, (4, 9), generator=torch.Generator().manual_seed(step))
    return {"input_ids": ids, "labels": ids}


def train(model: Any, rows: slice = slice(None)) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    """Some clipped steps; returns the gradients' norms, and what has stepped."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    norms = []
    for step in range(STEPS):
        with Float64():
            loss = model(**{name: value[rows] for name, value in batch(step).items()}, use_cache=False).loss
            loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        optimizer.zero_grad()
    return norms, optimizer


def held_by(optimizer: torch.optim.Optimizer) -> int:
    """How many numbers an optimizer keeps on this rank."""
    values = [value for slots in optimizer.state.values() for value in slots.values() if value.dim()]
    return sum(value.to_local().numel() for value in values)


def difference(state: dict[str, torch.Tensor], dense: nn.Module) -> float:
    return max(float((state[n] - p).detach().abs().max()) for n, p in dense.named_parameters())


# -- dropout ---------------------------------------------------------------------------------------------------------


def masks(model: nn.Module, seed: int, *, again: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of the inner values were dropped, by the gradient of what makes them, and the result."""
    model.zero_grad()
    torch.manual_seed(seed)
    value = torch.ones(1, 8)
    result = checkpoint(model, value, use_reentrant=False) if again else model(value)
    result.sum().backward()
    gradient = autotp.full_gradients(model)["0.weight"]
    assert gradient is not None
    return gradient.abs().sum(1) == 0, result.detach()


def dropout_on_ranks() -> tuple[Any, ...]:
    """Runs on a rank."""
    torch.manual_seed(torch.distributed.get_rank())  # the first rank's state is that of all afterwards
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8), nn.Dropout(0.5))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.25)
    autotp.parallelize(model, example=(torch.ones(3, 8),))
    common = torch.rand(())
    first, result = masks(model, 5)
    llama = autotp.parallelize(dense_model(attention_dropout=0.3))
    losses = []
    for checkpointed in (False, True):
        if checkpointed:
            llama.gradient_checkpointing_enable()
        torch.manual_seed(3)
        llama.zero_grad()
        llama(**batch(0), use_cache=False).loss.backward()
        losses.append(torch.cat([g.flatten() for g in autotp.full_gradients(llama).values() if g is not None]))
    return common, first, result, masks(model, 5), masks(model, 5, again=True), masks(model, 6), losses


@pytest.mark.sweep
def test_dropout_differs_between_slices_and_comes_again() -> None:
    runs = run_ranks(dropout_on_ranks, 2)
    common, first, result, *_ = runs[0]
    assert 16 < int(first.sum()) < 48
    assert not torch.equal(first[:32], first[32:])
    for other, mask, out, again, checkpointed, seeded, (plain, repeated) in runs:
        assert torch.equal(other, common)
        assert torch.equal(mask, first)
        assert torch.equal(out, result)
        for same in (again, checkpointed):
            assert torch.equal(same[0], first)
            assert torch.equal(same[1], result)
        assert not torch.equal(seeded[0], first)
        assert torch.allclose(plain, repeated, rtol=1e-12)
        assert plain.abs().max() > 0


# -- compiled steps, and a second mesh dim ---------------------------------------------------------------------------


@dataclass(frozen=True)
class CompiledStep:
    """Differences of a compiled step, gathers in its graphs, and if the logits it returns are cut."""

    gradient: float
    norm: float
    gathers: int
    cut: bool


VOCABULARY = 253  # two ranks hold 127 and 126


def compiled(within: bool, fullgraph: bool) -> CompiledStep:
    """Runs on a rank; the model is called `within` a function that is compiled, or compiled itself."""
    dense = dense_model(vocab_size=VOCABULARY)
    parallel: Any = autotp.parallelize(copy.deepcopy(dense))
    gathers = 0

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal gathers
        for part in graph.modules():
            if isinstance(part, torch.fx.GraphModule):
                gathers += sum("all_gather" in str(node.target) for node in part.graph.nodes)
        return aot_eager(graph, inputs)

    # Tracing by dynamo sees no float64 mode; the loss it upcasts to is float32.
    called = (lambda **inputs: parallel(**inputs)) if within else parallel
    model = torch.compile(called, backend=backend, fullgraph=fullgraph)
    expected = dense(**batch(0), use_cache=False).loss
    result = model(**batch(0), use_cache=False)
    expected.backward()
    result.loss.backward()
    clip = torch.nn.utils.clip_grad_norm_
    norms = clip(parallel.parameters(), 1.0), clip(dense.parameters(), 1.0)
    own = autotp.full_gradients(parallel)
    worst = max(float((own[n] - p.grad).abs().max() / p.grad.abs().max()) for n, p in dense.named_parameters())
    assert result.logits.shape == (*batch(0)["input_ids"].shape, VOCABULARY)
    return CompiledStep(worst, abs(float(norms[0] / norms[1]) - 1), gathers, isinstance(result.logits, DTensor))


# One key/value head on two ranks: some rows of a fused weight are on both, the others on one.
SHARED = {"name": "phi3", "num_key_value_heads": 1}


def two_dims() -> tuple[Any, ...]:
    """Runs on one of 2 x 2 ranks: norms and parameters beside the dense model's, and how much FSDP leaves."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    first = 2 * mesh["dp"].get_local_rank()
    rows = slice(first, first + 2)
    dense = dense_model(**SHARED)
    expected, _ = train(dense)

    replicated = autotp.parallelize(dense_model(**SHARED), mesh=mesh)
    norms, _ = train(DistributedDataParallel(replicated, process_group=mesh["dp"].get_group()), rows)

    sharded = autotp.parallelize(dense_model(**SHARED), mesh=mesh)
    held = sum(p.local().numel() if isinstance(p, CutTensor) else p.numel() for p in sharded.parameters())
    for block in sharded.model.layers:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(sharded, mesh=mesh["dp"])
    cut_again, optimizer = train(sharded, rows)
    norms += [norm.full_tensor() for norm in cut_again]  # type: ignore[attr-defined]
    differences = (
        max(abs(float(norm / true) - 1) for norm, true in zip(norms, expected * 2, strict=True)),
        difference(autotp.full_state_dict(replicated), dense),
        difference(autotp.full_state_dict(sharded), dense),
    )
    with pytest.raises(UsageError, match="full_state_dict"):
        sharded.state_dict()
    return differences, held, sum(p.to_local().numel() for p in sharded.parameters()), held_by(optimizer)


@pytest.mark.sweep
def test_data_parallel_around_a_parallel_model() -> None:
    local = autotp.plan(dense_model(**SHARED), 2).elements()[1]
    for differences, held, here, state in run_ranks(two_dims, 4):
        assert max(differences) < 1e-9
        assert held == local
        assert abs(here - held / 2) < 0.02 * held
        assert state == 2 * here  # two moments of what a rank holds, and of nothing else


@pytest.mark.sweep
@pytest.mark.parametrize(("within", "fullgraph"), [(False, True), (True, False), (True, True)])
def test_a_compiled_step(within: bool, fullgraph: bool) -> None:
    for step in run_ranks(compiled, 2, within, fullgraph):
        assert step.gradient < 1e-5
        assert step.norm < 1e-6
        one_graph = within and fullgraph  # which cannot hand on a distributed tensor
        assert step.cut is not one_graph
        assert step.gathers == int(one_graph)
