"""Errors that all ranks raise: whatever goes wrong on one rank, the others hear of it instead of waiting for it."""

from __future__ import annotations

import json
from collections.abc import Callable

from .. import errors
from ..errors import AutotpError, CheckpointError
from ..runtime.groups.ranks import Ranks

# How long a rank waits for the others in a step that all have begun: one may be writing to a slow disk.
PATIENCE_S = 3600.0
_GOOD = "+"


def share(ranks: Ranks, what: str, step: Callable[[], str], patience_s: float = PATIENCE_S) -> list[str]:
    """Run a step that takes no collective and return what it gave on all ranks, or raise the error of the first that failed.

    Raises:
        AutotpError: the step failed on some rank; the error is the same on all. What the system says becomes a
            CheckpointError.
        UsageError: some rank has not come to this step within the time; `what` is the function it should have called.
    """
    mine: Exception | None = None
    try:
        text = _GOOD + step()
    except Exception as error:
        mine, text = error, _encoded(error)
        ranks.tell(error)  # who waits within the step comes to its end
    said = ranks.exchange(text, what, patience_s)
    failed = [text for text in said if not text.startswith(_GOOD)]
    if failed:
        ranks.settle()
    if mine is not None and not isinstance(mine, (AutotpError, OSError)):
        raise mine  # a bug: with its own traceback
    if failed:
        raise _decoded(min(failed, key=_only_heard)) from mine
    return [text.removeprefix(_GOOD) for text in said]


def together(ranks: Ranks, what: str, step: Callable[[], object]) -> None:
    """Run a step on all ranks, or raise the error of the first that failed on all of them; see `share`."""

    def silently() -> str:
        step()
        return ""

    share(ranks, what, silently)


def _encoded(error: Exception) -> str:
    if isinstance(error, AutotpError):
        return json.dumps([type(error).__name__, str(error)])
    if isinstance(error, OSError) and error.filename:
        return json.dumps(["", f"cannot read or write {error.filename}: {error.strerror}"])
    return json.dumps(["", f"{type(error).__name__}: {error}"])


def _only_heard(text: str) -> bool:
    """Returns if an error only says that another rank had one."""
    return bool(json.loads(text)[0] == errors.RankLostError.__name__)


def _decoded(text: str) -> AutotpError:
    name, message = json.loads(text)
    kind = getattr(errors, name, CheckpointError)
    return kind(message)
