"""Who calls the models of a group: one thread at a time, in the process that made them parallel.

Collectives of the ranks belong together by their order, and what two threads do has no order that all ranks share.
"""

from __future__ import annotations

import os
import sys
import threading
import types
import weakref
from collections.abc import Iterator

import torch
from torch import nn
from torch.autograd import graph as autograd_graph

from ..errors import UsageError

MSG_THREADS = (
    "another thread is computing with a parallel model of these ranks, and two threads have no order that all ranks share;"
    " let one thread call the models, with a queue in front of it"
)
MSG_FORKED = (
    "this process was forked from one whose models are parallel, and is none of their ranks; use the models there, or start"
    " processes that need them by themselves (the start method 'spawn')"
)
MSG_PICKLED = (
    "a parallel model is a part that this process has, and cannot be pickled; save it with autotp.save_pretrained or"
    " autotp.TrainingState, or pickle autotp.full_state_dict(model)"
)
_CALL = nn.Module._call_impl.__code__
_BACKWARD = autograd_graph._engine_run_backward.__code__
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Callers:
    """The threads of this process that call the models of one group of ranks."""

    def __init__(self) -> None:
        self._forks, self._thread, self._lock = _forks, 0, threading.Lock()
        self._models: list[weakref.ref[nn.Module]] = []

    def begin(self, model: nn.Module) -> None:
        """A call of a model begins. Raises UsageError if another thread is in a call or a backward, or in a forked process."""
        me = threading.get_ident()
        with self._lock:
            if all(known() is not model for known in self._models):
                self._models = [*(known for known in self._models if known() is not None), weakref.ref(model)]
            if self._thread != me and self._thread:
                calls, backward = self._inside(self._thread)
                if calls or backward:
                    raise UsageError(MSG_THREADS)
            self._thread = me
        self.check()

    def check(self) -> None:
        """A collective begins. Raises UsageError as `begin` does; a backward may run in threads of its own."""
        if _forks != self._forks:
            raise UsageError(MSG_FORKED)
        if self._thread and threading.get_ident() != self._thread:
            calls, backward = self._inside(self._thread)
            in_backward = torch._C._current_graph_task_id() != -1
            if (calls and not backward) if in_backward else (calls or backward):
                raise UsageError(MSG_THREADS)

    def _inside(self, thread: int) -> tuple[bool, bool]:
        """Whether a thread is in a call of a model, and in a backward."""
        codes = [(frame.f_code, frame) for frame in _frames(thread)]
        models = [model() for model in self._models]
        calls = any(code is _CALL and any(frame.f_locals["self"] is model for model in models) for code, frame in codes)
        return calls, any(code is _BACKWARD for code, _ in codes)


def _frames(thread: int) -> Iterator[types.FrameType]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back
