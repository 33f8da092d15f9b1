"""Saves that are killed at any moment, that meet a full disk or a folder they may not write, or that somebody reads meanwhile:
the last whole state is there, bit for bit, and can be resumed at another number of ranks."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import autotp
from autotp.checkpoint.replace import settle
from autotp.errors import AutotpError, CheckpointError, RankError
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from tests.checkpoint.models import config_of, simulated, write

MANY = 10_000


def a_model() -> Any:
    torch.manual_seed(0)
    return autotp.parallelize(build_model(config_of("padded_and_tied"), meta=False))


def save_again_and_again(folder: Path, start: int, delay: float) -> None:
    """Every save has one number in all of its tensors; some time after the first one, this rank is killed."""
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = autotp.TrainingState(model, optimizer)
    for i in range(start, start + MANY):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(i)
        autotp.save_pretrained(model, folder / "model")
        state.save(folder / "training", {"step": i})
        if i == start and dist.get_rank() == 0:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()


def resume(folder: Path) -> tuple[int, set[float], set[float]]:
    """The step, the numbers in the model that is resumed, and those in the one that is loaded."""
    model, others = a_model(), {"step": -1}
    autotp.TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)).load(
        folder / "training", others
    )
    loaded = autotp.from_pretrained(folder / "model")
    weights = [autotp.full_state_dict(each).values() for each in (model, loaded)]
    return others["step"], *({float(v) for tensor in found for v in tensor.unique()} for found in weights)


@pytest.mark.sweep
def test_a_killed_save_leaves_a_whole_one_to_resume_at_another_size(tmp_path: Path, sweep: bool) -> None:
    chance, step = random.Random(os.urandom(4)), 0
    for size in (4, 1, 3) if sweep else (1,):
        with pytest.raises(RankError, match="rank 0 was ended by signal 9"):
            run_ranks(save_again_and_again, 2, tmp_path, step, chance.uniform(0, 0.4))
        for before, resumed, loaded in run_ranks(resume, size, tmp_path):
            assert before >= step
            assert resumed == {before}
            assert loaded in ({before}, {before + 1})
        step = before + 1
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"model", "training", ".model.saving", ".training.saving"}


def cut_again_and_again(first: Path, second: Path, out: Path, delay: float) -> None:
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    for _ in range(MANY):
        for source in (first, second):
            autotp.shard(source, out, 2, overwrite=True)


@pytest.mark.sweep
def test_a_killed_shard_leaves_a_whole_one(tmp_path: Path, sweep: bool) -> None:
    for name, seed in (("one", 1.0), ("two", 2.0)):
        model: Any = write("llama", tmp_path / name)
        for parameter in model.parameters():
            parameter.detach().fill_(seed)
        model.save_pretrained(tmp_path / name)
    autotp.shard(tmp_path / "one", tmp_path / "cut", 2)
    chance = random.Random(os.urandom(4))
    for _ in range(4 if sweep else 1):
        ways = tmp_path / "two", tmp_path / "one", tmp_path / "cut"
        with pytest.raises(RankError, match="rank 0 was ended by signal 9"):
            run_ranks(cut_again_and_again, 1, *ways, chance.uniform(2.0, 8.0))
        autotp.merge(tmp_path / "cut", tmp_path / "again", overwrite=True)
        found = (tmp_path / "again" / "model.safetensors").read_bytes()
        assert found in [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]


# What cannot be written


def one_rank(folder: Path, how: str) -> str:
    """One save of what is saved again and again, which fails; its message."""
    model = a_model()
    state = autotp.TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if how == "full":  # a limit of the system, in place of a disk that is as small
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    elif os.geteuid() == 0:  # whom no permission holds
        os.setegid(65534)
        os.seteuid(65534)
    messages = []
    for save in (lambda: autotp.save_pretrained(model, folder / "model"), lambda: state.save(folder / "training")):
        with pytest.raises(CheckpointError) as caught:
            save()
        messages.append(str(caught.value))
    if how != "full" and os.getuid() == 0:
        os.seteuid(0)
    return "; ".join(messages)


@pytest.mark.sweep
@pytest.mark.parametrize(("how", "words"), [("full", "File too large"), ("read-only", "Permission denied")])
def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, how: str, words: str) -> None:
    run_ranks(save_once, 1, tmp_path)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    tmp_path.chmod(0o555)
    for path in tmp_path.rglob("*"):
        path.chmod(0o555)
    for path in (tmp_path, *(tmp_path.rglob("*") if how == "full" else ())):
        path.chmod(0o755 if how == "full" else 0o555)
    for above in list(tmp_path.parents)[:3]:
        above.chmod(0o755)
    (message,) = run_ranks(one_rank, 1, tmp_path, how)
    assert words in message
    assert "\n" not in message
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
    for path in (tmp_path, *tmp_path.iterdir()):
        path.chmod(0o755)


def save_once(folder: Path) -> None:
    model = a_model()
    autotp.save_pretrained(model, folder / "model")
    autotp.TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1)).save(folder / "training")


# What is read meanwhile


def replace_again_and_again(first: Path, second: Path, out: Path) -> None:
    for _ in range(MANY):
        for source in (first, second):
            autotp.merge(source, out, max_shard_size="60KB", overwrite=True)


@pytest.mark.sweep
def test_who_reads_while_it_is_replaced_has_one_of_both_or_an_error(tmp_path: Path) -> None:
    for name, number in (("one", 1.0), ("two", 2.0)):
        model: Any = write("llama", tmp_path / name)
        for parameter in model.parameters():
            parameter.detach().fill_(number)
        model.save_pretrained(tmp_path / name)
        autotp.shard(tmp_path / name, tmp_path / f"cut {name}", 2)
    autotp.merge(tmp_path / "cut one", tmp_path / "out", max_shard_size="60KB")
    process = multiprocessing.get_context("fork").Process(
        target=replace_again_and_again, args=(tmp_path / "cut two", tmp_path / "cut one", tmp_path / "out")
    )
    process.start()
    found = []
    try:
        for _ in range(40):
            with suppress(AutotpError):
                (read,) = simulated(
                    tmp_path / "out", 1, run=lambda model: {float(p.detach().max()) for p in model.parameters()}
                )
                found.append(read)
    finally:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    assert all(read in ({1.0}, {2.0}) for read in found), found
    settle(tmp_path / "out")
    files = [load_file(file) for file in (tmp_path / "out").glob("*.safetensors")]
    assert {float(tensor.max()) for tensors in files for tensor in tensors.values()} in ({1.0}, {2.0})
