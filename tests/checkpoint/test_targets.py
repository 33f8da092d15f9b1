"""Where checkpoints are written: nothing of somebody else's is lost, whichever command or function writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import autotp
from autotp.cli import main
from autotp.errors import CheckpointError
from tests.checkpoint.models import write
from tests.checkpoint.test_outside import contents


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a checkpoint in it, one that was cut, notes, and another folder."""
    write("gpt2", tmp_path / "par" / "ck")
    autotp.shard(tmp_path / "par" / "ck", tmp_path / "par" / "cut", 2)
    (tmp_path / "par" / "notes").write_text("mine")
    (tmp_path / "par" / "other").mkdir()
    (tmp_path / "par" / "other" / "thesis").write_text("mine")
    return tmp_path / "par"


def refused(result: Result, message: str) -> None:
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_shard_and_merge_empty_no_folder(home: Path, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(home)
    for out in (home, home / "ck", home.parent, home / "ck" / ".."):
        refused(command("shard", home / "ck", out, "--tp", 2, *more), "it is, or holds, ")
    for out in (home, home / "cut"):
        refused(command("merge", home / "cut", out, *more), "it is, or holds, ")
    refused(
        command("shard", home / "ck", home / "other", "--tp", 2, *more),
        "autotp.shard did not write it: thesis is there",
    )
    refused(command("merge", home / "cut", home / "other", *more), "autotp.merge did not write it: thesis is there")
    refused(command("merge", home / "cut", home / "ck", *more), "autotp.merge did not write it: config.json is there")
    refused(command("shard", home / "ck", home / "notes", "--tp", 2, *more), "it is a file, not a folder")
    monkeypatch.chdir(home / "other")
    refused(command("shard", home / "ck", ".", "--tp", 2, *more), "autotp.shard did not write it: thesis is there")
    refused(command("shard", "../ck", "..", "--tp", 2, *more), "it is, or holds, ")
    assert contents(home) == before


def test_what_was_written_before_is_replaced_on_request(home: Path) -> None:
    (home / "cut" / "notes").write_text("mine")
    before = contents(home)
    refused(
        command("shard", home / "ck", home / "cut", "--tp", 3), "was written by autotp.shard before; add --overwrite"
    )
    refused(
        command("merge", home / "cut", home / "cut" / "rank-0-of-2"), "autotp.merge did not write it: model.safetensors"
    )
    assert contents(home) == before
    assert command("shard", home / "ck", home / "cut", "--tp", 3, "--overwrite").exit_code == 0
    names = {path.name for path in (home / "cut").iterdir()}
    assert "notes" in names
    assert {name for name in names if name.startswith("rank-")} == {f"rank-{rank}-of-3" for rank in range(3)}
    assert (home / "cut" / "notes").read_text() == "mine"


def test_the_folder_one_works_in_may_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "new").mkdir()
    monkeypatch.chdir(home / "new")
    for more in ((), ("--overwrite",)):
        assert command("shard", "../ck", ".", "--tp", 2, *more).exit_code == 0
        assert {path.name for path in Path().iterdir()} >= {"plan.json", "rank-0-of-2", "rank-1-of-2"}
    assert command("merge", ".", "../merged").exit_code == 0
    expected = (home / "ck" / "model.safetensors").read_bytes()
    assert (home / "merged" / "model.safetensors").read_bytes() == expected


@pytest.mark.parametrize(
    "write_to", [lambda s, o: autotp.shard(s, o, 2), lambda s, o: autotp.shard(s, o, 2, overwrite=True)]
)
def test_the_functions_refuse_as_the_commands_do(home: Path, write_to: Callable[[Path, Path], object]) -> None:
    before = contents(home)
    for out in (home, home / "other", home / "ck", home / "notes"):
        with pytest.raises(CheckpointError):
            write_to(home / "ck", out)
    assert contents(home) == before
