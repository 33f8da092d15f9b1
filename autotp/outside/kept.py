"""What is kept on disk from one process to the next, and where. A folder that cannot be read or written only costs time."""

from __future__ import annotations

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


def sources(rules: Iterable[Path]) -> Iterator[Path]:
    """The files of autotp, and the rules, of which each may decide about a plan."""
    for place, pattern in ((PACKAGE, "*.py"), *((place, "*.toml") for place in (RULES, *rules))):
        yield from sorted(place.rglob(pattern))


def digest_of(text: str, files: Iterable[Path]) -> str:
    """A hash of a text and of what is in files."""
    digest = hashlib.sha256(text.encode())
    for file in files:
        digest.update(str(file).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
