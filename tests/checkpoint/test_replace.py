"""A folder is replaced whole or not at all, also by a process that is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from autotp.checkpoint import replace
from autotp.checkpoint.replace import replacing
from autotp.errors import CheckpointError


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "logs").mkdir(parents=True)
    for name in ("weights", "index", "tokenizer", "logs/1"):
        (folder / name).write_text(f"old {name}")
    return folder


def test_a_new_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with replacing(tmp_path / "a" / "model") as new:
        (new / "weights").write_text("new")
        assert not (tmp_path / "a" / "model").exists()
    assert tree(tmp_path) == {"a/model/weights": "new"}


@pytest.mark.parametrize("exchange", [True, False])
def test_an_old_folder_is_replaced_and_other_files_stay(
    old: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(replace, "_exchange", lambda one, other: False)
    with replacing(old, lambda name: name == "index") as new:
        (new / "weights").write_text("new")
        assert tree(old)["weights"] == "old weights"
    assert tree(old) == {"weights": "new", "tokenizer": "old tokenizer", "logs/1": "old logs/1"}
    assert [path.name for path in old.parent.iterdir()] == ["model"]


def test_an_error_leaves_the_old_folder(old: Path) -> None:
    before = tree(old)
    with pytest.raises(CheckpointError, match="full"), replacing(old) as new:
        _fail(new)
    assert tree(old) == before
    assert [path.name for path in old.parent.iterdir()] == ["model"]
    with pytest.raises(CheckpointError, match=r"cannot write .*nowhere/weights: No such file"), replacing(old) as new:
        (new / "nowhere" / "weights").write_text("new")
    assert tree(old) == before


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(CheckpointError, match="it is a file, not a folder"), replacing(tmp_path / "model"):
        pass
    assert tree(tmp_path) == {"model": "mine"}


def _fail(new: Path) -> None:
    (new / "weights").write_text("new")
    raise CheckpointError("full")


def _die_while_saving(folder: Path) -> None:
    with replacing(folder) as new:
        (new / "weights").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_save_leaves_the_old_folder_and_the_next_one_cleans_up(old: Path) -> None:
    before = tree(old)
    process = multiprocessing.get_context("spawn").Process(target=_die_while_saving, args=(old,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert tree(old) == before
    assert (old.parent / ".model.saving").exists()
    with replacing(old) as new:
        (new / "weights").write_text("new")
    assert tree(old) == {**before, "weights": "new"}
    assert [path.name for path in old.parent.iterdir()] == ["model"]
