"""What one case may take, and what may come of it: an error of autotp's, of one line, or a result."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from types import FrameType

from autotp.errors import AutotpError

MOST_SECONDS, MOST_MIB = 10, 1024


class TooLong(BaseException):
    """A case took longer than it may; no handler of errors is to take it for one."""


def outcome_of(case: Callable[[], str]) -> str:
    """What a case found wrong; empty if it gave a right result, or an error as it should be."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {MOST_SECONDS} s")

    before, held = signal.signal(signal.SIGALRM, stop), _held_mib()
    start = time.process_time()
    signal.alarm(6 * MOST_SECONDS)
    try:
        wrong = case()
    except AutotpError as error:
        text = str(error)
        wrong = "" if text.strip() and "\n" not in text and len(text) < 2000 else f"not one line: {text[:300]!r}"
    except BaseException as error:
        wrong = f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    taken, more = time.process_time() - start, _held_mib() - held
    if not wrong and taken > MOST_SECONDS:
        wrong = f"it took {taken:.0f} s"
    return wrong or (f"it took {more:.0f} MiB" if more > MOST_MIB else "")


def _held_mib() -> float:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
