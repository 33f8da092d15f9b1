"""What is kept on disk from one process to the next, and where. A folder that cannot be read or written only costs time."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from .rule_files import RULES

FOLDER_VARIABLE = "AUTOTP_CACHE"
PACKAGE = Path(__file__).parents[1]
logger = logging.getLogger("autotp")


def folder() -> Path:
    """`$AUTOTP_CACHE`, else the folder for it among the user's cached files."""
    own = os.environ.get(FOLDER_VARIABLE)
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotp" / "plans"


def keep(file: Path, text: str) -> None:
    """Write a file in one step, so that another process never reads half of it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, suffix=".tmp", delete=False) as new:
            new.write(text)
        os.replace(new.name, file)
    except OSError as error:
        logger.info("%s is not kept: %s", file.name, error)


@functools.cache
def sources_digest(rules: tuple[Path, ...]) -> str:
    """A hash of autotp and the rules, each of which may decide about a plan; of what they were when this process began to use
    them."""
    places = (PACKAGE, ".py"), *((place, ".toml") for place in (RULES, *rules))
    return digest_of("", (file for place, ending in places for file in sorted(_files(place, ending))))


def _files(place: Path, ending: str) -> Iterator[str]:
    for folder, _, names in os.walk(place):
        yield from (os.path.join(folder, name) for name in names if name.endswith(ending))


def digest_of(text: str, files: Iterable[str | Path]) -> str:
    """A hash of a text and of what is in files."""
    digest = hashlib.sha256(text.encode())
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            digest.update(str(file).encode() + b"\0" + opened.read())
    return digest.hexdigest()
