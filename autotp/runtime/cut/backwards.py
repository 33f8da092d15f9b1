"""Who computes in a backward: torch and we do with parts, and everybody else with whole tensors."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.autograd import graph as autograd_graph

_running = threading.local()
_BACKWARD = autograd_graph._engine_run_backward.__code__
# Whose Python computes in a backward by itself: torch's, ours, that of Python, and what these two write.
_MACHINERY = (
    os.path.join(Path(torch.__file__).parent, ""),
    os.path.join(Path(__file__).parents[2], ""),
    contextlib.__file__,
    functools.__file__,
    "<autotp",
    "<eval_with_key>",
    "<frozen",
)


@contextmanager
def as_outside() -> Iterator[None]:
    """Within a backward, let cut tensors be whole to a hook that somebody has given."""
    before, _running.hook = getattr(_running, "hook", False), True
    try:
        yield
    finally:
        _running.hook = before


def is_in_backward() -> bool:
    """Returns if this is a step of a backward: not a hook or a derivative that somebody wrote, and not a checkpoint that
    computes its forward again."""
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or getattr(_running, "hook", False):
        return False
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _BACKWARD:
        name = frame.f_code.co_filename
        if not name.startswith(_MACHINERY) and not name.startswith(_compiled()):
            return False
        frame = frame.f_back
    return True


def _compiled() -> str:
    """Where torch's compiler writes Python; it says so in the environment as soon as it does."""
    return os.path.join(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "<nowhere>"), "")
