"""Files in and out: both formats, what is wrong with a file is said with its name and the tensor's."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from autotp.checkpoint.folder import INDEX, read_folder
from autotp.checkpoint.lazy import Lazy, read
from autotp.checkpoint.stored import read_pickled, read_safetensors
from autotp.checkpoint.write import Writer
from autotp.errors import CheckpointError

TENSORS = {
    "b": torch.arange(24.0).reshape(4, 6),
    "a.weight": torch.randn(3, 5).to(torch.bfloat16),
    "a": torch.tensor(7),
    "z": torch.randn(2, 3, dtype=torch.float64),
    "flags": torch.tensor([True, False, True]),
    "é": torch.zeros(0, 4),
    "half": torch.randn(5).half(),
}


def write(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    with Writer(file, {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}) as writer:
        for name, tensor in reversed(tensors.items()):
            writer.write(name, tensor)


def read_all(entries: object) -> dict[str, torch.Tensor]:
    return {name: read(Lazy.of(entry, entry.shape, entry.dtype)) for name, entry in entries.items()}  # type: ignore[attr-defined]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[n], other[n]) and one[n].dtype == other[n].dtype for n in one
    )


def test_a_file_is_written_as_the_library_writes_it(tmp_path: Path) -> None:
    write(tmp_path / "ours", TENSORS)
    save_file(TENSORS, tmp_path / "theirs", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert same(load_file(tmp_path / "ours"), TENSORS)


def test_safetensors_are_read_back(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert same(read_all(read_folder(tmp_path)), TENSORS)


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_files_are_read_back(tmp_path: Path, zipped: bool) -> None:
    tensors = {**TENSORS, "turned": TENSORS["b"].t(), "tied": TENSORS["b"], "part": TENSORS["b"][1:3]}
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert same(read_all(read_folder(tmp_path)), tensors)


def test_several_files_are_read_by_their_index(tmp_path: Path) -> None:
    save_file({"b": TENSORS["b"]}, tmp_path / "one.safetensors")
    save_file({"z": TENSORS["z"]}, tmp_path / "two.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"b": "one.safetensors", "z": "two.safetensors"}}))
    assert same(read_all(read_folder(tmp_path)), {"b": TENSORS["b"], "z": TENSORS["z"]})
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks the file two\.safetensors .* for tensor 'z'"):
        read_folder(tmp_path)
    save_file({"y": TENSORS["z"]}, tmp_path / "two.safetensors")
    with pytest.raises(CheckpointError, match=r"two\.safetensors lacks tensor 'z'"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (lambda data: data[:-8], r"model\.safetensors is truncated: tensor '\w+' ends at byte"),
        (lambda data: data[:40], r"model\.safetensors is truncated or no safetensors file: its header is not whole"),
        (lambda data: data[:5], "its header is not whole"),
        (lambda data: data[:8] + b"x" + data[9:], "no safetensors file: its header is no JSON"),
        (lambda data: data.replace(b'"F32","shape":[4,6]', b'"F32","shape":[4,5]'), "'b' .* has 96 bytes, .* needs 80"),
        (lambda data: data.replace(b'"F64"', b'"F99"'), "'z' .* has the dtype 'F99'"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, keep: object, message: str) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    file.write_bytes(keep(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=message):
        read_safetensors(file)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_broken_torch_file_is_named(tmp_path: Path, zipped: bool) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save({"b": TENSORS["b"]}, file, _use_new_zipfile_serialization=zipped)
    file.write_bytes(file.read_bytes()[:-60])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is truncated or no file of torch\.save"):
        read_all(read_pickled(file))
    torch.save([1], file)
    with pytest.raises(CheckpointError, match="holds a list, not a dictionary of tensors"):
        read_pickled(file)


def test_a_file_cut_off_after_it_was_opened_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    entries = read_safetensors(file)
    os.truncate(file, 200)
    with pytest.raises(CheckpointError, match=r"is truncated: tensor 'z'"):
        read_all({"z": entries["z"]})


def test_a_folder_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no weights: none of model\.safetensors, "):
        read_folder(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        read_folder(tmp_path / "nowhere")


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    file = re.escape(str(tmp_path / "x.safetensors"))
    with pytest.raises(CheckpointError, match=f"cannot write {file}: No space left on device; its 1 tensors need"):
        write(tmp_path / "x.safetensors", {"b": TENSORS["b"]})


def test_a_disk_that_fills_up_while_writing_names_the_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.safetensors"
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write tensor 'big' of .*x\.safetensors: File too large"):
            write(file, {"big": torch.zeros(5000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_dtype_the_format_has_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'c' of .* has the dtype torch\.complex128"):
        write(tmp_path / "x", {"c": torch.zeros(2, dtype=torch.complex128)})
