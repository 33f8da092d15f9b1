"""transformers' Trainer, and accelerate's data loaders, on parallel models: in float64 they train as the dense model does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import autotp
from autotp.checkpoint.full import state_of
from autotp.errors import UsageError
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import FAMILIES

pytest.importorskip("accelerate", reason="Trainer needs accelerate, which is not installed")

DP, TP = 2, 2


def model() -> Any:
    torch.manual_seed(0)
    return build_model(FAMILIES["llama"].config(), meta=False).double()


def rows(number: int) -> list[dict[str, torch.Tensor]]:
    drawn = torch.randint(3, 250, (number, 11), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": ids, "labels": ids.masked_fill(ids % 7 == 0, -100)} for ids in drawn]


def arguments(folder: Path, size: int) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        str(folder),
        per_device_train_batch_size=size,
        per_device_eval_batch_size=size,
        gradient_accumulation_steps=2,
        max_steps=3,
        learning_rate=1e-2,
        max_grad_norm=0.5,
        eval_strategy="steps",
        eval_steps=3,
        logging_steps=1,
        save_steps=3,
        save_only_model=True,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )


def numbers(trainer: Any) -> list[float]:
    """Every loss and norm that a trainer has logged."""
    keys = ("loss", "grad_norm", "eval_loss")
    return [float(entry[key]) for entry in trainer.state.log_history for key in keys if key in entry]


def trained(kind: Any, own: Any, folder: Path, size: int) -> list[float]:
    trainer = kind(own, arguments(folder, size), train_dataset=rows(40), eval_dataset=rows(8))
    trainer.train()
    return numbers(trainer)


def dense(folder: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Runs in a process of its own: accelerate remembers for ever how many there are."""
    from transformers import Trainer

    with Float64():
        own = model()
        return trained(Trainer, own, folder, 2 * DP), own.state_dict()


def as_torchrun_would() -> None:
    rank, world = str(torch.distributed.get_rank()), str(torch.distributed.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # the group is there already


def parallel(folder: Path) -> tuple[list[float], dict[str, torch.Tensor], list[int]]:
    """Runs on a rank."""
    as_torchrun_would()
    from accelerate.data_loader import prepare_data_loader

    from autotp import ParallelTrainer

    mesh = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("dp", "tp"))
    with Float64():
        own = autotp.parallelize(model(), mesh=mesh)
        with pytest.raises(UsageError, match="fully_shard"):
            ParallelTrainer(own, arguments(folder, 2))
        for block in own.model.layers:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(own, mesh=mesh["dp"])
        found = trained(ParallelTrainer, own, folder, 2)
    loader = prepare_data_loader(
        torch.utils.data.DataLoader(range(8), batch_size=2), num_processes=DP, process_index=mesh["dp"].get_local_rank()
    )
    return found, autotp.full_state_dict(own), torch.cat(list(loader)).tolist()


def far(found: dict[str, torch.Tensor], true: dict[str, torch.Tensor]) -> float:
    return max(float((found[name] - tensor).detach().abs().max()) for name, tensor in true.items())


def on_positions(folder: Path) -> tuple[list[float], dict[str, torch.Tensor], set[str]]:
    """Runs on a rank: blocks are checkpointed, and hand on what is cut over positions."""
    as_torchrun_would()
    from autotp import ParallelTrainer

    with Float64():
        own = autotp.parallelize(model(), sequence_parallel=True)
        own.gradient_checkpointing_enable({"use_reentrant": False})
        with state_of(own).ranks.logging() as log:
            found = trained(ParallelTrainer, own, folder, 2 * DP)
    return found, autotp.full_state_dict(own), {c.kind for c in log.calls}


@pytest.fixture(scope="module")
def expected_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], dict[str, torch.Tensor]]:
    return run_ranks(dense, 1, tmp_path_factory.mktemp("dense"))[0]


@pytest.mark.sweep
def test_trainer_of_blocks_that_are_cut_over_positions(tmp_path: Path, expected_run: Any) -> None:
    expected, true = expected_run
    for found, state, kinds in run_ranks(on_positions, TP, tmp_path):
        assert found == pytest.approx(expected, rel=1e-9)
        assert far(state, true) < 1e-9
        assert "reduce_scatter" in kinds


def test_trainer_on_two_by_two_ranks(tmp_path: Path, expected_run: Any) -> None:
    from transformers import AutoModelForCausalLM

    expected, true = expected_run
    runs = run_ranks(parallel, DP * TP, tmp_path / "parallel")
    for found, state, _ in runs:
        assert found == pytest.approx(expected, rel=1e-9)
        assert far(state, true) < 1e-9
    assert [batches for *_, batches in runs] == [[0, 1, 4, 5]] * 2 + [[2, 3, 6, 7]] * 2
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "parallel" / "checkpoint-3")
    assert far(saved.state_dict(), true) < 1e-9
