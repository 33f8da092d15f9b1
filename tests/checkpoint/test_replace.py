"""A folder is replaced whole or not at all, also by a process that is killed, and nothing of somebody else's ever is."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from autotp.checkpoint import replace
from autotp.checkpoint.marker import MARKER, MOVING, STAGING, WHOLE, Marker
from autotp.checkpoint.target import Target
from autotp.errors import CheckpointError


def tree(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.read_text()
        for p in sorted(folder.rglob("*"))
        if (p.is_file() or p.is_symlink()) and p.name != MARKER and STAGING not in p.parts
    }


def to(folder: Path, *, overwrite: bool = True, among_others: bool = False, source: Path | None = None) -> Target:
    return Target(folder, "a test", overwrite, among_others, lambda name: name.startswith("weights"), source)


def write(folder: Path, text: str, names: tuple[str, ...] = ("weights", "parts/1"), **how: bool) -> None:
    with to(folder, **how).written() as new:
        for name in names:
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text(text)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """What an earlier run wrote, and beside it what others did."""
    folder = tmp_path / "model"
    write(folder, "old", ("weights", "index", "parts/1", "parts/2"))
    (folder / "logs").mkdir()
    (folder / "logs" / "1").write_text("mine")
    (folder / "notes").write_text("mine")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("notes")
    return folder


MINE = {"logs/1": "mine", "notes": "mine", "link": "notes"}
NEW = {"weights": "new", "parts/1": "new", **MINE}
MODES = ("exchange", "renames", "fixed", "inside")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ways of systems: two folders change places; two renames; a folder that cannot be renamed; and none beside it."""
    if request.param != "exchange":
        monkeypatch.setattr(replace, "_exchange", lambda one, other: False)
    if request.param == "fixed":
        monkeypatch.setattr(replace, "_rename_both", lambda new, folder: False)
    if request.param == "inside":
        monkeypatch.setattr(replace.os.path, "ismount", lambda path: True)
    return str(request.param)


def test_a_new_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with to(tmp_path / "a" / "model").written() as new:
        (new / "weights").write_text("new")
        assert not (tmp_path / "a" / "model").exists()
    assert tree(tmp_path) == {"a/model/weights": "new"}
    assert Marker.load(tmp_path / "a" / "model") == Marker("a test", WHOLE, ("weights",))


def test_what_an_earlier_run_wrote_is_replaced_and_nothing_else(old: Path, mode: str) -> None:
    with to(old).written() as new:
        (new / "weights").write_text("new")
        (new / "parts").mkdir()
        (new / "parts" / "1").write_text("new")
        assert tree(old)["weights"] == "old"
    assert tree(old) == NEW
    assert (old / "empty").is_dir()
    assert [path.name for path in old.parent.iterdir()] == ["model"]
    assert not (old / STAGING).exists()


def test_an_error_leaves_the_old_folder(old: Path, mode: str) -> None:
    before = tree(old)
    with pytest.raises(CheckpointError, match="full"), to(old).written() as new:
        _fail(new)
    assert tree(old) == before
    with (
        pytest.raises(CheckpointError, match=r"cannot write .*nowhere/weights: No such file"),
        to(old).written() as new,
    ):
        (new / "nowhere" / "weights").write_text("new")
    assert tree(old) == before
    assert [path.name for path in old.parent.iterdir()] == ["model"]


def test_an_error_leaves_no_folders_that_were_made_for_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="full"), to(tmp_path / "a" / "b" / "c").written() as new:
        _fail(new)
    assert list(tmp_path.iterdir()) == []


def _fail(new: Path) -> None:
    (new / "weights").write_text("new")
    raise CheckpointError("full")


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("others", ["notes", ".hidden", "folder/"])
def test_a_folder_of_others_is_refused(tmp_path: Path, others: str, overwrite: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / others).mkdir() if others.endswith("/") else (folder / others).write_text("mine")
    name = others.strip("/")
    with pytest.raises(CheckpointError, match=rf"is not empty, and a test did not write it: {name} is there; give"):
        write(folder, "new", overwrite=overwrite)
    assert [path.name for path in folder.iterdir()] == [name]


def test_an_earlier_run_s_folder_is_replaced_only_if_that_is_said(old: Path) -> None:
    before = tree(old)
    with pytest.raises(CheckpointError, match=r"was written by a test before; add --overwrite \(overwrite=True\)"):
        write(old, "new", overwrite=False)
    with pytest.raises(CheckpointError, match="is not empty, and another did not write it"):
        Target(old, "another", overwrite=True, among_others=True).check()
    assert tree(old) == before


def test_a_folder_that_holds_what_is_read_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "all" / "model"
    write(tmp_path / "all", "old", ("weights",))
    write(source, "old")
    (tmp_path / "link").symlink_to(tmp_path / "all")
    for folder in (source, tmp_path / "all", tmp_path, tmp_path / "link", source / ".." / ".."):
        with pytest.raises(CheckpointError, match=r"it is, or holds, .*model, which is read; give another folder"):
            to(folder, source=source).check()
    to(source / "cut", source=source).check()


def test_among_others_only_what_has_a_new_name_or_an_own_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer").write_text("mine")
    write(folder, "old", ("weights", "config"), among_others=True)
    write(folder, "new", ("weights", "config"), among_others=True)
    assert tree(folder) == {"tokenizer": "mine", "weights": "new", "config": "new"}
    (folder / "weights-2").write_text("mine")
    with pytest.raises(CheckpointError, match="has weights-2, which a test did not write and so does not replace"):
        write(folder, "newer", among_others=True)
    (folder / "weights-2").unlink()
    for names in (("tokenizer",), ("tokenizer/1",)):
        with pytest.raises(CheckpointError, match=rf"has {names[0]}, which a test did not write"):
            write(folder, "newer", names, among_others=True)
    assert tree(folder) == {"tokenizer": "mine", "weights": "new", "config": "new"}


def test_a_marker_cannot_make_files_elsewhere_one_s_own(tmp_path: Path, mode: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1").write_text("mine")
    for files in (["../elsewhere/1"], [str(tmp_path / "elsewhere/1")], ["parts/1"], [3], "x", None, [["a"]]):
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "parts").symlink_to(tmp_path / "elsewhere")
        (folder / (MARKER + ".new")).symlink_to(tmp_path / "elsewhere" / "1")
        Marker("a test", WHOLE, files).save(folder)  # type: ignore[arg-type]
        with suppress(CheckpointError):
            write(folder, "new", ("weights",))
        with suppress(CheckpointError):
            write(folder, "new", ("parts/1",))
        assert tree(tmp_path / "elsewhere") == {"1": "mine"}
        assert os.readlink(folder / "parts") == str(tmp_path / "elsewhere")
        folder.rename(tmp_path / f"done {len(list(tmp_path.iterdir()))}")


def test_the_folder_one_works_in_stays_that_folder(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(old)
    write(Path(), "new")
    assert tree(Path()) == tree(old) == NEW
    monkeypatch.chdir(old / "logs")
    write(Path(".."), "newer")
    assert (Path("..") / "weights").read_text() == "newer"


def test_a_link_to_a_folder_stays_a_link(old: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(old)
    write(tmp_path / "latest", "new")
    assert (tmp_path / "latest").is_symlink()
    assert tree(old) == NEW
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(CheckpointError, match="circle"):
        write(tmp_path / "circle", "new")


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(CheckpointError, match="it is a file, not a folder"):
        write(tmp_path / "model", "new")
    with pytest.raises(CheckpointError, match=r"cannot write .*: Not a directory"):
        write(tmp_path / "model" / "below", "new")
    assert tree(tmp_path) == {"model": "mine"}


def test_what_lies_where_the_new_folder_is_written_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / ".model.saving").mkdir()
    (tmp_path / ".model.saving" / "notes").write_text("mine")
    (tmp_path / "model" / "notes").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"\.model\.saving/notes is in the way"):
        write(tmp_path / "model", "new", among_others=True)
    assert tree(tmp_path) == {".model.saving/notes": "mine"}


def test_what_comes_into_the_old_folder_while_it_is_replaced_stays(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = replace._exchange

    def late(one: Path, other: Path) -> bool:
        (old / "late").write_text("mine")
        return exchange(one, other)

    monkeypatch.setattr(replace, "_exchange", late)
    write(old, "new")
    assert tree(old) == {**NEW, "late": "mine"}


def test_two_processes_do_not_write_one_folder(old: Path) -> None:
    before = tree(old)
    with to(old).written() as new:
        (new / "weights").write_text("new")
        with pytest.raises(CheckpointError, match=r"another process is writing to .*model; wait until"):
            write(old, "newer")
        assert tree(old) == before
    assert tree(old)["weights"] == "new"


def _die_while_saving(folder: Path) -> None:
    with to(folder).written() as new:
        (new / "weights").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def _save_again_and_again(folder: Path, how: str, count: int) -> None:
    if how != "exchange":
        replace._exchange = lambda one, other: False
    if how == "fixed":
        replace._rename_both = lambda new, folder: False
    if how == "inside":
        os.path.ismount = lambda path: True  # type: ignore[assignment]
    for i in range(count):
        names = ("weights", "index") if i % 2 else ("weights", "parts/1", "parts/2")
        write(folder, f"save {i}", names)


def test_a_killed_save_leaves_the_old_folder_and_the_next_one_cleans_up(old: Path) -> None:
    before = tree(old)
    process = multiprocessing.get_context("spawn").Process(target=_die_while_saving, args=(old,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert tree(old) == before
    assert (old.parent / ".model.saving").exists()
    write(old, "new")
    assert tree(old) == NEW
    assert [path.name for path in old.parent.iterdir()] == ["model"]


SAVED = ({"weights", "index"}, {"weights", "parts/1", "parts/2"}, {"weights", "index", "parts/1", "parts/2"})


@pytest.mark.parametrize("how", MODES)
def test_after_a_kill_at_any_moment_there_is_one_whole_save(old: Path, how: str, sweep: bool) -> None:
    chance = random.Random(os.urandom(4))
    context = multiprocessing.get_context("fork")
    for _ in range(60 if sweep else 8):
        process = context.Process(target=_save_again_and_again, args=(old, how, 10_000))
        process.start()
        time.sleep(chance.uniform(0.005, 0.06))
        assert process.is_alive()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        replace.settle(old)
        found = tree(old)
        assert {found.pop(name) for name in MINE} == {"mine", "notes"}
        assert set(found) in SAVED
        assert len(set(found.values())) == 1, found
    write(old, "new")
    assert tree(old) == NEW
    assert [path.name for path in old.parent.iterdir()] == ["model"]
    assert not (old / STAGING).exists()


def test_a_save_that_was_whole_is_finished(old: Path) -> None:
    (old / STAGING).mkdir()
    (old / STAGING / "weights").write_text("new")
    Marker("a test", MOVING, ("weights", "index")).save(old / STAGING)  # `index` was moved before the kill
    replace.settle(old)
    assert tree(old) == {"weights": "new", "index": "old", **MINE}
    assert not (old / STAGING).exists()
