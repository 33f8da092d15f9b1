"""The file that says of a folder which files in it a run of autotp wrote, and so which ones a later run may replace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from ..outside.data import is_name_inside

MARKER = ".autotp.json"
STAGING = ".autotp.saving"  # a folder in one that cannot be renamed, for what is to be moved into it
VERSION = 1
# What a folder that is being written says of itself: not all of it is there; it is whole, and is being moved into another
# folder file by file; it is whole and in its place.
UNFINISHED, MOVING, WHOLE = "unfinished", "moving", "whole"


@dataclass(frozen=True)
class Marker:
    """Which function wrote a folder, how far it is, and the files it wrote, with `/` between folders."""

    written_by: str
    state: str
    files: tuple[str, ...] = ()
    version: int = VERSION

    def save(self, folder: Path) -> None:
        """Write it in one step, so that a killed process leaves the one before. Raises OSError."""
        new = folder / (MARKER + ".new")
        new.unlink(missing_ok=True)
        with new.open("x", encoding="utf-8") as file:  # never through a link
            file.write(json.dumps(asdict(self), indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / MARKER)

    @staticmethod
    def load(folder: Path) -> Marker | None:
        """The marker of a folder; None if there is none that can be believed."""
        try:
            data = json.loads((folder / MARKER).read_bytes())
            marker = Marker(data["written_by"], data["state"], tuple(data["files"]), data["version"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        named = isinstance(marker.written_by, str) and marker.state in (UNFINISHED, MOVING, WHOLE)
        inside = all(isinstance(file, str) and is_name_inside(file) for file in marker.files)
        return marker if marker.version == VERSION and named and inside else None


def files_in(folder: Path) -> Iterator[str]:
    """Every file below a folder but the marker, with `/` between folders; a link is a file, wherever it leads."""
    for path, folders, files in os.walk(folder):
        inside = Path(path)
        if inside == folder:
            folders[:] = [name for name in folders if name != STAGING]
        links = [name for name in folders if (inside / name).is_symlink()]
        for name in (*files, *links):
            relative = (inside / name).relative_to(folder)
            if relative.name not in (MARKER, MARKER + ".new") or len(relative.parts) > 1:
                yield str(PurePosixPath(*relative.parts))


def is_through_links(folder: Path, file: str) -> bool:
    """Returns if some folder on the way to a file is a link, so that the file may lie elsewhere."""
    parents = PurePosixPath(file).parents
    return any((folder / parent).is_symlink() for parent in parents if parent != PurePosixPath("."))


def owned_files(folder: Path, marker: Marker | None) -> frozenset[str]:
    """The files of a folder that a run of autotp wrote, as its marker says."""
    if marker is None or marker.state == UNFINISHED:
        return frozenset()
    return frozenset(file for file in marker.files if not is_through_links(folder, file))
