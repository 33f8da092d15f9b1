"""`autotp shard` and `autotp merge`: into one folder a rank and back to the same bytes, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

import autotp
from autotp.checkpoint.marker import MARKER
from autotp.cli import main
from autotp.errors import CheckpointError, UsageError
from autotp.report import byte_size
from tests.checkpoint.models import simulated, write
from tests.parts import held_by


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file but the marker, which says who wrote the folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != MARKER}


@pytest.mark.parametrize(("name", "tp"), [("padded_and_tied", 4), ("phi3", 3), ("bert", 2), ("mixtral", 2)])
def test_merge_undoes_shard(name: str, tp: int, tmp_path: Path) -> None:
    write(name, tmp_path / "first").save_pretrained(tmp_path / "a")
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    autotp.shard(tmp_path / "a", tmp_path / "cut", tp)
    names = {path.name for path in (tmp_path / "cut").iterdir()}
    assert names >= {"autotp.json", "plan.json", "config.json", "tokenizer.json", f"rank-{tp - 1}-of-{tp}"}
    autotp.merge(tmp_path / "cut", tmp_path / "b")
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


@pytest.mark.sweep
def test_the_commands_do_the_same(tmp_path: Path) -> None:
    write("gpt2", tmp_path / "a")
    plan = tmp_path / "plan.json"
    assert command("plan", tmp_path / "a", "--tp", 2, "--out", plan).exit_code == 0
    cut = command("shard", tmp_path / "a", tmp_path / "cut", "--tp", 2, "--plan", plan)
    assert (cut.exit_code, cut.stdout) == (0, f"{tmp_path}/cut: 2 ranks, 239.1 KiB each\n")
    merged = command("merge", tmp_path / "cut", tmp_path / "b", "--max-shard-size", "150KB")
    files = sorted((tmp_path / "b").glob("*.safetensors"))
    size = byte_size(sum(file.stat().st_size for file in files))
    assert (merged.exit_code, merged.stdout) == (0, f"{tmp_path}/b: {len(files)} files, {size}\n")
    assert len(files) > 2
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    expected = load_file(tmp_path / "a" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    for arguments, message in (
        (("merge", tmp_path / "a", tmp_path / "c"), "is an ordinary checkpoint already"),
        (("shard", tmp_path / "nowhere", tmp_path / "c", "--tp", 2), "is no folder and no model id"),
        (("shard", tmp_path / "a", tmp_path / "c", "--tp", 0), "tp must be a whole number of at least 1"),
        (("shard", tmp_path / "a", tmp_path / "c", "--tp", 3, "--plan", plan), "the plan is for 2 ranks"),
    ):
        result = command(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_rank_holds_what_slicing_gives_it(tmp_path: Path) -> None:
    write("phi3", tmp_path / "a")
    autotp.shard(tmp_path / "a", tmp_path / "cut", 3)
    sliced = simulated(tmp_path / "a", 3, run=held_by)
    opened = simulated(tmp_path / "cut", 3, run=held_by)
    for rank in range(3):
        stored = load_file(tmp_path / "cut" / f"rank-{rank}-of-3" / "model.safetensors")
        assert opened[rank].keys() == sliced[rank].keys() == stored.keys()
        for name, parameter in sliced[rank].items():
            assert torch.equal(opened[rank][name], parameter)
            assert torch.equal(stored[name], parameter)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    write("llama", tmp_path / "a")
    plan = autotp.shard(tmp_path / "a", tmp_path / "cut", 2)
    with pytest.raises(UsageError, match="is cut for 2 ranks already"):
        autotp.shard(tmp_path / "cut", tmp_path / "again", 2)
    with pytest.raises(UsageError, match="is cut for 2 ranks, not for 3; run autotp merge"):
        simulated(tmp_path / "cut", 3)
    (tmp_path / "cut" / "rank-1-of-2" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*rank-1-of-2/model\.safetensors: No such file"):
        simulated(tmp_path / "cut", 2)
    with pytest.raises(CheckpointError, match=r"rank-1-of-2/model\.safetensors"):
        autotp.merge(tmp_path / "cut", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    (tmp_path / "cut" / "autotp.json").write_text('{"version": 1}')
    with pytest.raises(CheckpointError, match="has version 1, this autotp reads 2"):
        autotp.merge(tmp_path / "cut", tmp_path / "b")
    assert plan.tp == 2
