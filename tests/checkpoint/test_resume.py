"""A run that is killed again and again reaches the weights of one that is not, bit for bit."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import autotp
from autotp.errors import RankError
from autotp.runtime.groups.launch import run_ranks
from tests.checkpoint.models import write

STEPS, EVERY = 14, 2


def last_checkpoint(folder: Path) -> int:
    """The step of the last whole checkpoint; its metadata are written last. 0 if there is none."""
    return max((int(file.parent.name) for file in folder.glob("*/.metadata")), default=0)


def run(source: Path, folder: Path, die_after: int, victim: int) -> tuple[int, dict[str, torch.Tensor]]:
    """Train from the last checkpoint on; one rank is killed some steps later, in the midst of a step."""
    model = autotp.from_pretrained(source).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"training": autotp.TrainingState(model, optimizer)}
    start = last_checkpoint(folder)
    dist.barrier()
    if start:
        dcp.load(state, checkpoint_id=folder / str(start))
    for step in range(start, STEPS):
        torch.manual_seed(step)  # dropout included
        tokens = torch.randint(3, 250, (2, 11))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        if step - start == die_after and dist.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        if (step + 1) % EVERY == 0:
            dcp.save(state, checkpoint_id=folder / str(step + 1))
    return start, autotp.full_state_dict(model)


@pytest.mark.sweep
def test_a_run_killed_again_and_again_reaches_the_same_weights(tmp_path: Path, sweep: bool) -> None:
    write("gpt2", tmp_path / "model")
    arguments: tuple[Any, ...] = (tmp_path / "model",)
    _, expected = run_ranks(run, 2, *arguments, tmp_path / "whole", STEPS, 0)[0]
    chance = random.Random(os.urandom(4))
    starts = []
    for _ in range(3 if sweep else 1):
        starts.append(last_checkpoint(tmp_path / "killed"))
        with pytest.raises(RankError):
            run_ranks(run, 2, *arguments, tmp_path / "killed", chance.randint(1, 3), chance.randint(0, 1))
    resumed, weights = run_ranks(run, 2, *arguments, tmp_path / "killed", STEPS, 0)[0]
    assert resumed >= max(starts)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
