"""Values cut over positions on real ranks: numbers, collectives and their bytes, dropout, and FSDP around it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import autotp
from autotp.huggingface.models import build_model
from autotp.planner.formula import evaluate, sizes
from autotp.planner.plan import Plan
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import FAMILIES

BATCH, LENGTH = 3, 13


def dense_model() -> Any:
    torch.manual_seed(0)
    return build_model(FAMILIES["llama"].config(), meta=False).double().train()


def ids() -> torch.Tensor:
    return torch.randint(3, 250, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def trained(model: Any) -> dict[str, torch.Tensor]:
    """Two clipped steps; the weights after them, as wholes."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(2):
        with Float64():
            model(input_ids=ids(), labels=ids(), use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return autotp.full_state_dict(model) if hasattr(model, "_autotp") else model.state_dict()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(self.up(x)))


class Blocks(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.ModuleList([Block(), Block()]))
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self[0]:
            x = block(x)
        return x


def on_ranks() -> tuple[Any, ...]:
    """Runs on a rank."""
    model = autotp.parallelize(dense_model(), sequence_parallel=True)
    ranks, plan = model._autotp.ranks, model._autotp.plan
    with ranks.logging() as log, Float64():
        model(input_ids=ids(), use_cache=False).logits.sum().backward()
    model.zero_grad()
    weights = trained(model)
    dropping = autotp.parallelize(Blocks(), example=(torch.ones(3, 6, 8),), sequence_parallel=True)
    drawn = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        drawn.append(dropping(torch.ones(1, 6, 8)).detach())
    return log.calls, plan.to_json(), weights, drawn


def test_two_ranks_run_what_is_planned_and_train_as_the_dense_model_does() -> None:
    true = trained(dense_model())
    for calls, text, weights, drawn in run_ranks(on_ranks, 2):
        assert all(torch.allclose(weights[name], value, rtol=1e-9, atol=1e-11) for name, value in true.items())
        plan = Plan.from_json(text)
        counted = Counter((c.kind, c.phase, c.of) for c in calls)
        assert counted == Counter((c.kind, c.phase, c.of) for c in plan.step())
        # What is scattered and gathered is padded to equal parts: 14 positions.
        values = sizes(BATCH, LENGTH + 1)
        of_blocks = [c for unit in plan.units if unit.sequence for c in unit.collectives * len(unit.instances)]
        planned = Counter((c.kind, c.phase, evaluate(c.elements, values)) for c in [*of_blocks, *plan.around])
        whole = [c.elements * (c.ranks if c.kind == "all_gather" else 1) for c in calls]
        ran = Counter((c.kind, c.phase, size) for c, size in zip(calls, whole, strict=True))
        assert not planned - ran
        first, again, other = drawn
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert not torch.equal(first[:, :3], first[:, 3:])  # one rank's positions, and the other's


def around() -> dict[str, torch.Tensor]:
    """Runs on a rank: FSDP cuts the blocks' parameters over a second mesh dim."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = autotp.parallelize(dense_model(), mesh=mesh, sequence_parallel=True)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return trained(model)


@pytest.mark.sweep
def test_fully_sharded_blocks_train_as_the_dense_model_does() -> None:
    true = trained(dense_model())
    for weights in run_ranks(around, 4):
        assert all(torch.allclose(weights[name], value, rtol=1e-9, atol=1e-11) for name, value in true.items())
