"""Folders that are written whole or not at all: a save that is killed leaves what was there before."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError

_EXCHANGE = 2  # of renameat2
_HERE = -100  # AT_FDCWD


@contextmanager
def replacing(folder: Path, superseded: Callable[[str], bool] = lambda name: False) -> Iterator[Path]:
    """Write a folder beside the one that is there, and put it in its place at the end, in one step.

    Files of the old folder that are not written again stay, unless `superseded` says of a name that its time is over.
    An error leaves the old folder as it is; so does a killed process, whose unfinished folder `.NAME.saving` the next
    save removes.

    Raises CheckpointError naming the file that cannot be written.
    """
    folder = folder.resolve()
    new = folder.parent / f".{folder.name}.saving"
    try:
        if folder.exists() and not folder.is_dir():
            raise CheckpointError(f"cannot write a checkpoint to {folder}: it is a file, not a folder")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        yield new
        for path in [*filter(Path.is_file, new.rglob("*")), new]:
            _sync(path)
        if folder.exists():
            _keep(folder, new, superseded)
        _put(new, folder)
        _sync(folder.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _keep(old: Path, new: Path, superseded: Callable[[str], bool]) -> None:
    """Give the new folder what the old one has and it has not."""
    for entry in old.iterdir():
        target = new / entry.name
        if superseded(entry.name) or target.exists():
            continue
        if entry.is_symlink() or entry.is_file():
            _link(str(entry), str(target))
        else:
            shutil.copytree(entry, target, symlinks=True, copy_function=_link)


def _link(source: str, target: str) -> str:
    """The same file under another name, or a copy where the file system has no links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def _sync(path: Path) -> None:
    """Bring a file, or a folder's list of files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put(new: Path, folder: Path) -> None:
    """Put the new folder in the old one's place; where the system cannot exchange two folders, by two renames."""
    if not folder.exists():
        new.rename(folder)
    elif not _exchange(new, folder):
        aside = folder.parent / f".{folder.name}.replaced"
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        new.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Returns if the two folders have changed places, in one step."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0
