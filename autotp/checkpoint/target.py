"""Folders that autotp writes: the one way to write one, whole or not at all, and the one rule for what may be in its place.

Only what an earlier run of the same function wrote is ever replaced, as the folder's marker says, and it is gone only when
the new is whole and on the disk. A killed process leaves what was there; what it left beside that the next run removes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import CheckpointError
from .marker import MARKER, STAGING, UNFINISHED, Marker, files_in, owned_files
from .replace import beside, clear, hold, place_for_new, put, settle

MSG_FILE = "cannot write a checkpoint to {folder}: it is a file, not a folder"
MSG_SOURCE = "cannot write to {folder}: it is, or holds, {source}, which is read; give another folder"
MSG_OTHERS = (
    "{folder} is not empty, and {by} did not write it: {file} is there; give another folder, or empty it yourself"
)
MSG_AGAIN = (
    "{folder} was written by {by} before; add --overwrite (overwrite=True) to replace that, or give another folder"
)
MSG_TAKEN = (
    "{folder} has {file}, which {by} did not write and so does not replace; give another folder, or move that file"
)


@dataclass(frozen=True)
class Target:
    """A folder to write, by the function `written_by`; with `overwrite` what an earlier run of it wrote is replaced.

    Unless it may be `among_others`, nothing else may be there. `claims` says of the names in a folder which ones would be read
    as a part of what is written, and so cannot be those of others. `source` is what is read meanwhile.
    """

    folder: Path
    written_by: str
    overwrite: bool
    among_others: bool = False
    claims: Callable[[str], bool] = lambda name: False
    source: Path | None = None

    def check(self) -> None:
        """Raises CheckpointError if the folder may not be written."""
        with saying(self.folder):
            self._check(self.folder.resolve())

    @contextmanager
    def written(self) -> Iterator[Path]:
        """An empty folder to write into; at the end it takes the place of the one that is there.

        An error leaves the old folder as it is. Raises CheckpointError, naming the file that cannot be written.
        """
        with saying(self.folder), ExitStack() as stack:
            folder = self.folder.resolve()
            settle(folder)
            self._check(folder)
            new = place_for_new(folder)
            made = _missing(new.parent)
            stack.callback(_remove_empty, made)
            for left in (folder / STAGING, beside(folder, "saving")):
                if left.exists():
                    hold(stack, left, folder)
                    clear(left, folder)
            new.mkdir(parents=True)
            hold(stack, new, folder)
            stack.callback(_clear_quietly, new, folder)
            Marker(self.written_by, UNFINISHED).save(new)
            yield new
            if folder.exists():
                hold(stack, folder, folder)
                self._check_names(new, folder)
            put(new, folder, self.written_by)
            for old in (new, beside(folder, "replaced")):
                clear(old, folder)

    def _check(self, folder: Path) -> None:
        if self.source is not None and folder.exists():
            source = self.source.resolve()
            if any(path.exists() and path.samefile(folder) for path in (source, *source.parents)):
                raise CheckpointError(MSG_SOURCE.format(folder=self.folder, source=self.source))
        if not folder.is_dir():
            if os.path.lexists(folder):
                raise CheckpointError(MSG_FILE.format(folder=folder))
            return
        marker = Marker.load(folder)
        own = marker if marker is not None and marker.written_by == self.written_by else None
        owned = {PurePosixPath(file).parts[0] for file in owned_files(folder, own)}
        names = {entry.name for entry in folder.iterdir()} - {MARKER, STAGING}
        if own is not None and not self.overwrite:
            raise CheckpointError(MSG_AGAIN.format(folder=self.folder, by=self.written_by))
        if own is None and names and (marker is not None or not self.among_others):
            raise CheckpointError(MSG_OTHERS.format(folder=self.folder, by=self.written_by, file=min(names)))
        if taken := sorted(name for name in names - owned if self.claims(name)):
            raise CheckpointError(MSG_TAKEN.format(folder=self.folder, file=taken[0], by=self.written_by))

    def _check_names(self, new: Path, folder: Path) -> None:
        """Raises CheckpointError for a file of the new folder whose name somebody else's file has in the old one."""
        marker = Marker.load(folder)
        own = marker if marker is not None and marker.written_by == self.written_by else None
        owned = owned_files(folder, own)
        for file in files_in(new):
            over = [parent for parent in PurePosixPath(file).parents if parent.parts]
            blocked = [
                parent for parent in over if os.path.lexists(folder / parent) and not _is_folder(folder / parent)
            ]
            if blocked or (os.path.lexists(folder / file) and file not in owned):
                raise CheckpointError(MSG_TAKEN.format(folder=self.folder, file=file, by=self.written_by))


def _clear_quietly(new: Path, folder: Path) -> None:
    """Remove a new folder that was not finished. What cannot be removed now the next run removes."""
    with suppress(OSError, CheckpointError):
        clear(new, folder)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


@contextmanager
def saying(folder: Path) -> Iterator[None]:
    """What the system says of a folder and its files as a CheckpointError."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else folder
        raise CheckpointError(f"cannot write {name}: {error.strerror or error}") from error
    except RuntimeError as error:
        if "loop" not in str(error).lower():
            raise
        raise CheckpointError(f"cannot write {folder}: its links lead in a circle") from error


def _missing(folder: Path) -> list[Path]:
    """The folders that have to be made for one, the innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_empty(folders: list[Path]) -> None:
    for path in folders:
        try:
            path.rmdir()
        except OSError:
            return
