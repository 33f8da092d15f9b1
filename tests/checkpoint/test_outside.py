"""Checkpoints from outside: what is damaged, was swapped or leads elsewhere is refused in one line, and nothing is written."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

import autotp
from autotp.checkpoint.folder import INDEX, read_folder
from autotp.checkpoint.stored import read_pickled, read_safetensors
from autotp.cli import main
from autotp.errors import AutotpError, CheckpointError, UsageError
from tests.checkpoint.models import simulated, write

TWO = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(6.0, 12.0).reshape(2, 3)}


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def one_line(call: Callable[[], object], kind: type[AutotpError] = CheckpointError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


# Headers


def with_header(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = file.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[end:])


HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "negative": lambda h: h["a"].update(data_offsets=[-24, 0]),
    "before the data": lambda h: h["a"].update(data_offsets=[-8, 16]),
    "overlapping": lambda h: h["b"].update(data_offsets=[12, 36]),
    "the same": lambda h: h["b"].update(data_offsets=[0, 24]),
    "shifted": lambda h: h["b"].update(data_offsets=[25, 49]),
    "odd": lambda h: (h["a"].update(data_offsets=[0, 23]), h["b"].update(data_offsets=[23, 48])),
    "backwards": lambda h: h["a"].update(data_offsets=[24, 0]),
    "behind the end": lambda h: h["b"].update(data_offsets=[10**15, 10**15 + 24]),
    "a hole": lambda h: h.pop("a"),
    "negative shape": lambda h: h["a"].update(shape=[-2, -3]),
    "a huge shape": lambda h: h["a"].update(shape=[2**62, 2**62, 3]),
    "many dims": lambda h: h["a"].update(shape=[1] * 100_000 + [2, 3]),
    "text for a size": lambda h: h["a"].update(shape=["2", 3]),
    "a fraction": lambda h: h["a"].update(shape=[2.0, 3]),
    "infinite": lambda h: h["a"].update(data_offsets=[0, 1e400]),
    "no object": lambda h: h.update(a=[]),
    "metadata that is no text": lambda h: h.update(__metadata__={"format": 1}),
    "no dtype": lambda h: h["a"].pop("dtype"),
    "a dtype of lines": lambda h: h["a"].update(dtype="F\n32" * 500),
}


@pytest.mark.parametrize("change", HEADERS.values(), ids=HEADERS.keys())
def test_a_damaged_header_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TWO, file)
    with_header(file, change)
    assert "model.safetensors" in one_line(lambda: read_folder(tmp_path))


@pytest.mark.parametrize(
    "header",
    [b"[]", b"null", b"{", b"\xff" * 40, b'{"a":1,"a":2}', b"[" * 100_000, b'{"a": NaN}', b'{"__metadata__": 3}', b""],
)
def test_what_is_no_header_is_refused(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    if header:
        one_line(lambda: read_safetensors(file))


# Files of torch.save


class Runs:
    """What runs code when it is unpickled by anything less careful."""

    def __reduce__(self) -> Any:
        return print, ("it was run",)


def test_a_file_of_torch_that_cannot_be_loaded_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save({"a": Runs()}, file)
    one_line(lambda: read_folder(tmp_path))
    file.write_bytes(pickle.dumps({"a": Runs()}))
    one_line(lambda: read_folder(tmp_path))
    for data in (b"", b"x", b"PK\x03\x04", b"\x80\x04" + b"(" * 50, pickle.dumps([1]), b"\x80\x02}q\x00."):
        file.write_bytes(data)
        one_line(lambda: [read_pickled(file), read_folder(tmp_path / "empty")])
    for value in ({1: TWO["a"]}, {"a": TWO["a"].to_sparse()}, [TWO["a"]]):
        torch.save(value, file)
        one_line(lambda: read_pickled(file))
    assert capsys.readouterr().out == ""


def test_a_tensor_larger_than_its_record_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(1000.0), "b": torch.ones(1000)}, tmp_path / "good.bin")
    with zipfile.ZipFile(tmp_path / "good.bin") as good, zipfile.ZipFile(tmp_path / "bad.bin", "w") as bad:
        for info in good.infolist():
            data = good.read(info)
            bad.writestr(info.filename, data[:400] if info.filename.endswith("data/0") else data)
    assert "'a' of" in one_line(lambda: read_pickled(tmp_path / "bad.bin"))
    with zipfile.ZipFile(tmp_path / "good.bin") as good, zipfile.ZipFile(tmp_path / "packed.bin", "w") as packed:
        for info in good.infolist():
            how = zipfile.ZIP_DEFLATED if "data/" in info.filename else zipfile.ZIP_STORED
            packed.writestr(info.filename, good.read(info), how)
    one_line(lambda: read_pickled(tmp_path / "packed.bin"))


# Files that lie elsewhere


@pytest.mark.parametrize(
    "entry", ["../x.safetensors", "{outside}", "sub/../../x.safetensors", "linked.safetensors", "linked/x.safetensors"]
)
def test_an_index_does_not_lead_out_of_its_folder(tmp_path: Path, entry: str) -> None:
    save_file(TWO, tmp_path / "x.safetensors")
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "linked.safetensors").symlink_to(tmp_path / "x.safetensors")
    (folder / "linked").symlink_to(tmp_path)
    name = entry.format(outside=tmp_path / "x.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    assert "outside" in one_line(lambda: read_folder(folder))


LONG = json.dumps({"a": "9" * 400})
MAPS = (
    *("[]", '{"a": 3}', '{"a": ""}', '{"a": "."}', r'{"a": "a\u0000"}', '{"a": "x", "a": "y"}', r'{"a": "\ud800"}'),
    *(LONG, json.dumps({"a": "x/" * 9999})),
)


@pytest.mark.parametrize("text", ["[]", "3", "{", "[" * 99_999, *(f'{{"weight_map": {files}}}' for files in MAPS)])
def test_what_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    one_line(lambda: read_folder(tmp_path))


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to(tmp_path / "x")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "x"}}))
    one_line(lambda: read_folder(tmp_path))


def test_the_cache_of_the_hub_has_links_to_its_blobs(tmp_path: Path) -> None:
    folder = tmp_path / "models--x" / "snapshots" / "1"
    folder.mkdir(parents=True)
    (tmp_path / "models--x" / "blobs").mkdir()
    save_file(TWO, tmp_path / "models--x" / "blobs" / "7")
    (folder / "model.safetensors").symlink_to("../../blobs/7")
    assert read_folder(folder).keys() == TWO.keys()
    (folder / "model.safetensors").unlink()
    save_file(TWO, tmp_path / "x")
    (folder / "model.safetensors").symlink_to("../../../x")
    assert "outside of its folder" in one_line(lambda: read_folder(folder))


def test_a_tensor_that_two_files_have_is_the_one_of_the_file_that_the_index_names(tmp_path: Path) -> None:
    save_file({"a": TWO["a"]}, tmp_path / "one.safetensors")
    save_file({"a": TWO["b"].clone(), "b": TWO["b"]}, tmp_path / "two.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert torch.equal(read_folder(tmp_path)["a"].open(), TWO["a"])


def test_shard_copies_no_file_that_lies_elsewhere(tmp_path: Path) -> None:
    write("gpt2", tmp_path / "a")
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "a" / "vocab.txt").symlink_to(tmp_path / "secret")
    assert "outside of its folder" in one_line(lambda: autotp.shard(tmp_path / "a", tmp_path / "cut", 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "secret"]


# Configurations


CONFIGS = [
    *("[]", "3", "null", '"gpt2"', "{", "", "{}", '{"model_type": []}', "[" * 99_999),
    *(
        json.dumps({"model_type": "gpt2", **settings})
        for settings in (
            {"n_embd": "x"},
            {"n_head": 0},
            {"n_embd": -8},
            {"architectures": ["Trainer"], "n_layer": -3},
            {"n_layer": "two"},
            {"architectures": 3},
            {"quantization_config": 3},
        )
    ),
]


@pytest.mark.parametrize("text", CONFIGS)
def test_a_configuration_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    write("gpt2", tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text(text)
    before = contents(tmp_path)
    for arguments in (("plan", tmp_path / "a", "--tp", 2), ("shard", tmp_path / "a", tmp_path / "cut", "--tp", 2)):
        result = command(*arguments)
        if arguments[0] == "shard" or "architectures" not in text:
            assert result.exit_code == 2, (arguments, result.stdout)
            assert result.stderr.startswith("autotp: error: ")
            assert result.stderr.count("\n") == 1
    assert contents(tmp_path) == before


def test_a_configuration_runs_no_code_of_its_folder(tmp_path: Path) -> None:
    write("gpt2", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "own.Own",
        "AutoModelForCausalLM": "own.Own",
        "AutoTokenizer": ["own.Own", None],
    }
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    (tmp_path / "a" / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    autotp.shard(tmp_path / "a", tmp_path / "cut", 2)
    result = command("generate", tmp_path / "a", "--tp", 1, "--prompt", "x")
    assert result.exit_code != 0
    assert not (tmp_path / "ran").exists()


# Folders that were cut


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut")
    write("llama", folder / "a")
    autotp.shard(folder / "a", folder / "cut", 2)
    return folder / "cut"


def swap(folder: Path) -> None:
    (folder / "rank-0-of-2").rename(folder / "x")
    (folder / "rank-1-of-2").rename(folder / "rank-0-of-2")
    (folder / "x").rename(folder / "rank-1-of-2")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))


def resaved(folder: Path) -> None:
    """The other rank's numbers under this one's name: only the checksum knows."""
    other = load_file(folder / "rank-0-of-2" / "model.safetensors")
    save_file(other, folder / "rank-1-of-2" / "model.safetensors", {"format": "pt", "rank": "1", "ranks": "2"})


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "ranks swapped": (
        swap,
        "is that of rank 1 of 2, not that of rank 0 of 2; put every rank's folder back in its place",
    ),
    "a bit changed": (lambda f: flip(f / "rank-1-of-2/model.safetensors"), "its bytes have changed"),
    "another rank's numbers": (resaved, "its bytes have changed"),
    "no rank in it": (
        lambda f: save_file(load_file(f / "rank-0-of-2/model.safetensors"), f / "rank-0-of-2/model.safetensors"),
        "is that of no rank, not that of rank 0 of 2",
    ),
    "plan edited": (lambda f: edit(f / "plan.json", "160/2@1", "160/2@1 "), "plan.json is not what autotp shard wrote"),
    "plan gone": (lambda f: (f / "plan.json").unlink(), "cannot read"),
    "other ranks": (lambda f: edit(f / "autotp.json", '"tp": 2', '"tp": 3'), "plan.json is for 2 ranks"),
    "no ranks": (lambda f: edit(f / "autotp.json", '"tp": 2', '"tp": 0'), "tp is 0; expected a number of ranks"),
    "huge": (lambda f: edit(f / "autotp.json", '"tp": 2', f'"tp": {"9" * 4000}'), "expected a number of ranks"),
    "a shape of text": (lambda f: edit(f / "autotp.json", "250", '"250"'), "expected a size"),
    "a list": (lambda f: (f / "autotp.json").write_text("[]"), "expected what autotp shard wrote"),
    "no text": (lambda f: (f / "autotp.json").write_bytes(b"\xff"), "is not UTF-8"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_cut_is_neither_merged_nor_loaded(
    cut: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "cut"
    for name, data in contents(cut).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    damage(folder)
    before = contents(tmp_path)
    assert message in one_line(lambda: autotp.merge(folder, tmp_path / "b"))
    assert message in one_line(lambda: simulated(folder, 2), AutotpError)
    assert contents(tmp_path) == before


def test_a_size_of_files_that_is_none_is_refused(cut: Path, tmp_path: Path) -> None:
    for size in ("", "x", "-5GB", "0", 0, -1):
        one_line(lambda size=size: autotp.merge(cut, tmp_path / "b", max_shard_size=size), UsageError)
    assert not (tmp_path / "b").exists()
