"""Private maps of files: no file stays open for one, no change reaches a file or another map, each ends with its last view."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from autotp.checkpoint.folder import read_folder
from autotp.checkpoint.maps import private_map

TENSORS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    numbers = torch.arange(TENSORS * 8, dtype=torch.float32).reshape(TENSORS, 8)
    save_file({f"t{i}": row.clone() for i, row in enumerate(numbers)}, tmp_path / "model.safetensors")
    return tmp_path


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """This process may open this many files more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_model_may_have_more_tensors_than_a_process_may_open_files(folder: Path) -> None:
    stored = read_folder(folder)
    with few_files(20):
        held = [stored[f"t{i}"].open() for i in range(TENSORS)]
    for i, tensor in enumerate(held):
        assert torch.equal(tensor, torch.arange(i * 8, i * 8 + 8, dtype=torch.float32))


def test_changes_stay_in_one_map(folder: Path) -> None:
    entry = read_folder(folder)["t7"]
    one, other = entry.open(), entry.open()
    one.fill_(-1.0)
    assert torch.equal(other, torch.arange(56, 64, dtype=torch.float32))
    assert torch.equal(entry.open(), other)


def test_a_map_ends_with_its_last_view(folder: Path) -> None:
    entry = read_folder(folder)["t3"]
    view = entry.open()[2:4]
    gc.collect()
    assert view.tolist() == [26.0, 27.0]
    assert _maps_of(entry.file) == 1
    del view
    gc.collect()
    assert _maps_of(entry.file) == 0


def test_neither_a_child_nor_a_file_that_is_gone_changes_a_map(folder: Path) -> None:
    entry = read_folder(folder)["t5"]
    tensor = entry.open()
    child = os.fork()
    if not child:
        tensor.fill_(-1.0)
        os._exit(0)
    os.waitpid(child, 0)
    entry.file.unlink()
    assert torch.equal(tensor, torch.arange(40, 48, dtype=torch.float32))


def test_what_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb+") as file:
        file.write(b"12345678")
        file.flush()
        with pytest.raises(OSError, match="Invalid argument"):
            private_map(file.fileno(), 8, 3)  # not at a page


def _maps_of(file: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(file))
