"""torch logs a traceback for every operator that fails on fake tensors; while a model is captured that is an answer, which the
plan gives as a reason."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_here = threading.local()


def _is_wanted(record: logging.LogRecord) -> bool:
    return not getattr(_here, "depth", 0)


logging.getLogger("torch._subclasses.fake_tensor").addFilter(_is_wanted)


@contextmanager
def failures_are_answers() -> Iterator[None]:
    """Inside, this thread's failures of operators on fake tensors are not logged."""
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1
