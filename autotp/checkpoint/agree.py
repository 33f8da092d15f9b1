"""Errors that all ranks raise: whatever goes wrong on one rank, the others hear of it instead of waiting for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from .. import errors
from ..errors import AutotpError, CheckpointError
from ..runtime.ranks import Ranks

# How long a rank waits for the others in a step that all have begun: one may be writing to a slow disk.
PATIENCE_S = 3600.0


@contextmanager
def together(ranks: Ranks, what: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Run a step that holds no collective; afterwards all ranks go on, or all raise the error of the first that failed.

    Raises:
        AutotpError: the step failed on some rank; the error is the same on all. What the system says becomes a
            CheckpointError.
        UsageError: some rank has not come to this step within the time; `what` is the function it should have called.
    """
    mine: Exception | None = None
    try:
        yield
    except Exception as error:
        mine = error
    said = ranks.exchange("" if mine is None else _encoded(mine), what, patience_s)
    if mine is not None and not isinstance(mine, (AutotpError, OSError)):
        raise mine  # a bug: with its own traceback
    first = next((text for text in said if text), None)
    if first is not None:
        raise _decoded(first) from mine


def _encoded(error: Exception) -> str:
    if isinstance(error, AutotpError):
        return json.dumps([type(error).__name__, str(error)])
    if isinstance(error, OSError) and error.filename:
        return json.dumps(["", f"cannot read or write {error.filename}: {error.strerror}"])
    return json.dumps(["", f"{type(error).__name__}: {error}"])


def _decoded(text: str) -> AutotpError:
    name, message = json.loads(text)
    kind = getattr(errors, name, CheckpointError)
    return kind(message)
