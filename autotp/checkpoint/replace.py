"""A folder that is whole takes the place of another one: at once where the system can exchange two folders, else file by file.

Of the old folder only what its marker lists, or what the new one has as well, is ever removed; everything else stays.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from ..errors import CheckpointError
from .marker import MARKER, MOVING, STAGING, UNFINISHED, WHOLE, Marker, files_in, is_through_links, owned_files

_EXCHANGE = 2  # of renameat2
_HERE = -100  # AT_FDCWD
_LONGEST_NAME = 240  # bytes of a folder's name that leave room for more, of the 255 that a name has
MSG_BUSY = "another process is writing to {folder}; wait until it is done, or give another folder"
MSG_IN_THE_WAY = (
    "{path} is in the way: autotp keeps what it has not written yet there, and this it did not write; move it"
)


def beside(folder: Path, what: str) -> Path:
    """Where something that is to become a folder, or was one, lies beside it."""
    return folder.parent / f".{folder.name}.{what}"


def place_for_new(folder: Path) -> Path:
    """Where the new folder is written: beside the old one, or in it where the old one cannot be renamed."""
    parent, name = folder.parent, os.fsencode(folder.name)
    fixed = not name or len(name) > _LONGEST_NAME or os.path.ismount(folder) or _holds_this_process(folder)
    if fixed or (folder.exists() and not os.access(parent, os.W_OK)):
        return folder / STAGING
    return beside(folder, "saving")


def _holds_this_process(folder: Path) -> bool:
    """Returns if this process works in a folder, or in one below it: another one in its place would not be where it works."""
    try:
        return Path.cwd().is_relative_to(folder)
    except OSError:
        return False  # that folder is gone already


def hold(stack: ExitStack, path: Path, folder: Path) -> None:
    """Hold a folder for this process until the stack is left. Raises CheckpointError if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise CheckpointError(MSG_BUSY.format(folder=folder)) from error
        return  # this file system has no locks
    here, now = os.fstat(descriptor), path.stat()
    if (here.st_dev, here.st_ino) != (now.st_dev, now.st_ino):
        raise CheckpointError(MSG_BUSY.format(folder=folder))


def put(new: Path, folder: Path, written_by: str) -> None:
    """Put a whole new folder in the old one's place; what is not the old one's to replace stays. Raises OSError."""
    files = tuple(sorted(files_in(new)))
    sync_all(new)
    if new.parent != folder:
        if not folder.exists():
            Marker(written_by, WHOLE, files).save(new)
            sync(new)
            new.rename(folder)
            sync(folder.parent)
            return
        keep(folder, new)
        Marker(written_by, WHOLE, files).save(new)
        sync_all(new)
        if _exchange(new, folder) or _rename_both(new, folder):
            sync(folder.parent)
            return
        for file in set(files_in(new)) - set(files):
            (new / file).unlink()  # links to what stays where it is
    Marker(written_by, MOVING, files).save(new)
    sync(new)
    _move_in(new, folder)


def settle(folder: Path) -> None:
    """Finish what a killed process had whole and was putting in a folder's place.

    Raises CheckpointError if the process lives and is doing that itself, and OSError.
    """
    aside = beside(folder, "replaced")
    if Marker.load(aside) is not None and not folder.exists():
        aside.rename(folder)
    for new in (folder / STAGING, beside(folder, "saving")):
        marker = Marker.load(new)
        if marker is not None and marker.state == MOVING:
            with ExitStack() as stack:
                hold(stack, new, folder)
                _move_in(new, folder)


def clear(path: Path, folder: Path) -> None:
    """Remove what is left beside a folder, or in it: a new one that was not finished, or an old one that was replaced.

    Raises CheckpointError if something is there that nobody else has, and OSError.
    """
    if not path.exists():
        return
    marker = Marker.load(path)
    if marker is not None and marker.state == MOVING:
        return  # whole, and to be put in place by whoever comes next
    if marker is not None and marker.state == UNFINISHED:
        _remove(path, files_in(path))
        return
    owned = owned_files(path, marker)
    _remove(path, (file for file in files_in(path) if file in owned or _is_there(path / file, folder / file)))
    for file in files_in(path):  # it came into the old folder while that was being replaced
        target = folder / file
        if os.path.lexists(target) or is_through_links(folder, file):
            raise CheckpointError(MSG_IN_THE_WAY.format(path=path / file))
        target.parent.mkdir(parents=True, exist_ok=True)
        (path / file).rename(target)
    _remove(path, ())


def keep(old: Path, new: Path) -> None:
    """Give the new folder what the old one has and no run of autotp wrote, under the same names. Raises OSError."""
    owned = owned_files(old, Marker.load(old))
    for path, folders, files in os.walk(old):
        relative = Path(path).relative_to(old)
        if not folders and not files:
            _make_folder(old, new, relative)
        folders[:] = [name for name in folders if relative / name != Path(STAGING)]
    for file in files_in(old):
        if file not in owned:
            _make_folder(old, new, Path(file).parent)
            _link(old / file, new / file)
    shutil.copymode(old, new)


def _make_folder(old: Path, new: Path, relative: Path) -> None:
    for part in (*reversed(relative.parents), relative):
        if not (new / part).exists():
            (new / part).mkdir()
            shutil.copystat(old / part, new / part)


def _link(source: Path, target: Path) -> None:
    """The same file under another name, or a copy where the file system has no links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _is_there(one: Path, other: Path) -> bool:
    """Returns if two names are of one file, or of a file and its copy."""
    try:
        first, second = one.lstat(), other.lstat()
    except OSError:
        return False
    if (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino):
        return True
    if stat.S_ISLNK(first.st_mode) and stat.S_ISLNK(second.st_mode):
        return os.readlink(one) == os.readlink(other)
    regular = stat.S_ISREG(first.st_mode) and stat.S_ISREG(second.st_mode)
    return regular and (first.st_size, first.st_mtime_ns) == (second.st_size, second.st_mtime_ns)


def _remove(folder: Path, files: Iterable[str]) -> None:
    """Remove files, the folders that are empty then, and last, where nothing is left, the marker and the folder."""
    for file in list(files):
        (folder / file).unlink()
    for path, folders, _ in os.walk(folder, topdown=False):
        for name in folders:
            if not (Path(path) / name).is_symlink() and not os.listdir(Path(path) / name):
                (Path(path) / name).rmdir()
    if folder.exists() and {entry.name for entry in folder.iterdir()} <= {MARKER, MARKER + ".new"}:
        shutil.rmtree(folder)


def _move_in(new: Path, folder: Path) -> None:
    """Move a whole new folder's files over those of the old one; done again, it goes on where it was stopped."""
    marker = Marker.load(new)
    assert marker is not None
    gone = owned_files(folder, Marker.load(folder)) - set(marker.files)
    for file in gone:
        (folder / file).unlink(missing_ok=True)
    for file in marker.files:
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(new / file):
            (new / file).replace(target)
    Marker(marker.written_by, WHOLE, marker.files).save(folder)
    for parent in {parent for file in gone for parent in PurePosixPath(file).parents} - {PurePosixPath(".")}:
        if (folder / parent).is_dir() and not os.listdir(folder / parent):
            (folder / parent).rmdir()
    sync_all(folder, [*marker.files, MARKER])
    _remove(new, ())


def sync_all(folder: Path, files: Sequence[str] | None = None) -> None:
    """Bring files of a folder, and the lists of files of it and of all folders in it, to the disk."""
    for file in files_in(folder) if files is None else files:
        if (folder / file).is_file() and not (folder / file).is_symlink():
            sync(folder / file)
    for path, _, _ in os.walk(folder):
        sync(Path(path))


def sync(path: Path) -> None:
    """Bring a file, or a folder's list of files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Returns if the two folders have changed places, in one step."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0


def _rename_both(new: Path, folder: Path) -> bool:
    """Returns if the new folder is in the old one's place, and the old one aside, after two renames."""
    aside = beside(folder, "replaced")
    clear(aside, folder)
    try:
        folder.rename(aside)
    except OSError:
        return False  # such a folder has a fixed place, as a mount has
    new.rename(folder)
    return True
