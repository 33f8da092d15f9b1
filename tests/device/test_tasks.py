"""What people do with a parallel model, on the test device: as the dense model, in float64, and nothing leaves the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotp.runtime.groups.launch import run_ranks
from tests.device import tasks
from tests.device.models import dense_model
from tests.device.ranks import WORLDS, run_on_device

pytestmark = pytest.mark.usefixtures("device")
EXACT = 1e-9


def all_of(names: tuple[str, ...]) -> dict[str, float]:
    """Runs on a rank: several tasks in one process, since starting one takes longer than they do."""
    return {name: getattr(tasks, name)() for name in names}


def check(found: list[dict[str, float]]) -> None:
    for each in found:
        assert max(each.values()) < EXACT, each


def trained(names: tuple[str, ...]) -> dict[str, float]:
    """Runs on a rank."""
    return {name: tasks.training_differs(name) for name in names}


def test_tensors_that_a_block_makes_are_on_its_device() -> None:
    check(run_on_device(all_of, 2, ("wanderer_differs",), world="two backends"))


def test_random_numbers_are_the_device_s() -> None:
    for found in run_on_device(tasks.draws, 2):
        assert found == (True, True, True)


# -- the rest of what is claimed, in every kind of world -------------------------------------------------------------

SWEEP: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "training": (trained, (("llama", "phi3", "gpt2", "mixtral"),)),
    "cut logits, adapters, initial values": (
        all_of,
        (("cut_loss_differs", "adapters_differ", "initial_values_differ"),),
    ),
}


@pytest.mark.long
def test_autocast_is_that_of_the_device() -> None:
    for found in run_on_device(tasks.narrow_differs, 2):
        assert found < 0.05


@pytest.mark.long
def test_groups_are_made_once_and_freed() -> None:
    for before, during, after, given in run_on_device(tasks.groups_made, 4):
        assert before == after
        assert during == before + 1  # of the two this rank is in one
        assert given


@pytest.mark.long
def test_parts_go_where_they_should() -> None:
    for number, found in enumerate(run_on_device(tasks.placed, 2)):
        assert found == {
            "its own": f"mock:{number}",
            "given": f"mock:{number + 4}",
            "where the model is": f"mock:{number + 4}",
        }


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("task", SWEEP)
@pytest.mark.parametrize("size", [2, 4])
def test_tasks(world: str, task: str, size: int) -> None:
    function, arguments = SWEEP[task]
    check(run_on_device(function, size, *arguments, world=world))


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("size", [2, 4])
def test_generation_everywhere(world: str, size: int) -> None:
    for wrong in run_on_device(
        tasks.texts, size, ("llama", "gpt2", "gemma2", "mistral"), tuple(tasks.DECODING), world=world
    ):
        assert not wrong


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_data_parallel_on_a_second_dim_of_the_mesh(kind: str, world: str) -> None:
    for found in run_on_device(tasks.data_parallel_differs, 4, kind, world=world):
        assert found < EXACT


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_checkpoints_everywhere(tmp_path: Path, world: str) -> None:
    dense_model("llama").save_pretrained(tmp_path / "source")
    for found in run_on_device(tasks.checkpoints_differ, 4, tmp_path / "source", tmp_path, world=world):
        assert found < EXACT


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("world", "size"),
    [
        ("no backend", 2),
        *(pytest.param(w, n, marks=pytest.mark.long) for w in WORLDS for n in (2, 4) if (w, n) != ("no backend", 2)),
    ],
)
def test_a_trainer_computes_where_the_model_is(tmp_path: Path, world: str, size: int) -> None:
    pytest.importorskip("accelerate", reason="Trainer needs accelerate, which is not installed")
    (expected,) = run_ranks(tasks.by_dense_trainer, 1, tmp_path)
    for found in run_on_device(tasks.trainer_differs, size, tmp_path, expected, world=world):
        assert found < EXACT
