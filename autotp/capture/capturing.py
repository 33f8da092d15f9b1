"""What lasts while a model is captured.

One thread at a time does it: functions, classes and settings that a process has once are others meanwhile, and fake tensors
are remembered by torch for all threads. So is that symbols are traced: who compares sizes of a graph waits, too. Whoever
compiles waits as well, since what is compiled would call the functions that are there for the time of a capture.
torch logs a traceback for every operator that fails on fake tensors; here that is an answer, which the plan gives as a reason.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._dynamo.convert_frame import compile_lock
from torch.fx import _symbolic_trace as symbolic_trace
from torch.fx._lazy_graph_module import _use_lazy_graph_module

_here = threading.local()
# Python's own thresholds (700 new objects, and two times 10 such looks) are for programs that make few.
_RARELY = (100_000, 100, 1_000)


def _is_wanted(record: logging.LogRecord) -> bool:
    return not getattr(_here, "depth", 0)


logging.getLogger("torch._subclasses.fake_tensor").addFilter(_is_wanted)


@contextmanager
def capturing() -> Iterator[None]:
    """Inside, no other thread captures or compiles, and this thread's failures of operators on fake tensors are not logged.
    Memory is looked through for what nothing refers to more rarely: a capture makes many small objects, and few such ones."""
    with compile_lock:
        _here.depth = getattr(_here, "depth", 0) + 1
        if _here.depth == 1:
            _here.known = {}
        thresholds = gc.get_threshold()
        gc.set_threshold(*(max(own, rarely) if own else 0 for own, rarely in zip(thresholds, _RARELY, strict=True)))
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)
            _here.depth -= 1
            if not _here.depth:
                _here.known = {}


def known_so_far() -> dict[Any, Any]:
    """What was found out since the outermost capture of this thread began, and need not be found out again before it ends."""
    known: dict[Any, Any] = _here.known if getattr(_here, "depth", 0) else {}
    return known


@contextmanager
def unwrapped() -> Iterator[None]:
    """Inside, tracers of fx leave the functions in place that were registered with `torch.fx.wrap`. They would put others there,
    which do what these do, and which nobody finds when a program is looked for. They write no Python of a graph before it runs,
    which a trace does not."""
    registered: dict[Any, Any] = symbolic_trace._wrapped_fns_to_patch
    kept = dict(registered)
    registered.clear()
    try:
        with _use_lazy_graph_module(True):
            yield
    finally:
        registered.update({**kept, **registered})
