"""Everything autotp raises on purpose: one small tree, each error one clear line with what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AutotpError(Exception):
    """Root of all errors a user can meet; `exit_code` is what the command line returns for it."""

    exit_code = 2


class UsageError(AutotpError):
    """An argument is wrong: the message names the argument and the values that are right."""


class RuleError(AutotpError):
    """A rule file says something autotp does not know: the message names file, entry and nearest known word."""


class TraceError(AutotpError):
    """A unit could not be captured as a graph."""


class PlanError(AutotpError):
    """A plan does not belong to the model, or its file cannot be read."""


class UnsoundPlanError(PlanError):
    """A plan cuts what must stay whole: the message names the parameter, the node and the operator."""


class PlacementError(AutotpError):
    """A program's certificate is not valid: a value is used in a state that its operator does not allow. It is not run."""


class CheckpointError(AutotpError):
    """A checkpoint cannot be read or written: the message names the file and the tensor, and is the same on all ranks."""


class VerificationError(AutotpError):
    """The parallel model differs from the dense one."""

    exit_code = 1


class RankLostError(AutotpError):
    """Another rank of the group has ended, did not come to a collective, or runs a different one."""

    exit_code = 1


class RankError(AutotpError):
    """A rank died, or failed with an error that cannot be sent: the message names the rank."""

    exit_code = 1


def in_one_line(error: BaseException) -> str:
    """What somebody else's code raised: its kind and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


MOST_LISTED = 40


def nearest(word: str, known: Iterable[str], most: int = 1) -> str:
    """`; did you mean 'x'?` with at most so many known words that are close to `word`, or begin as it does where several are
    asked for; where none is, the known words, unless those are too many to read."""
    options = sorted(known)
    close = difflib.get_close_matches(word, options, n=most)
    if most > 1:
        close += [name for name in options if name and (word.startswith(name) or (word and name.startswith(word)))]
    close = [repr(name) for name in dict.fromkeys(close)][:most]
    if close:
        return f"; did you mean {' or '.join(filter(None, (', '.join(close[:-1]), close[-1])))}?"
    if len(options) > MOST_LISTED:
        return f"; none of the {len(options)} that are known is like it"
    return f"; known: {', '.join(options)}"
