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

from ...errors import UsageError

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
    """The threads of this process that compute with the models of one group of ranks."""

    def __init__(self) -> None:
        self._forks, self._thread, self._lock = _forks, 0, threading.Lock()
        self._models: list[weakref.ref[nn.Module]] = []

    def add(self, model: nn.Module) -> None:
        """Let a model be one of the group's."""
        self._models = [*(known for known in self._models if known() is not None), weakref.ref(model)]

    def check(self) -> None:
        """A call or a collective begins in this thread.

        Raises UsageError while another thread is in a call of a model, or of a part of one, or in a backward, and in a forked
        process. A backward may run in threads of its own.
        """
        if _forks != self._forks:
            raise UsageError(MSG_FORKED)
        me = threading.get_ident()
        if me != self._thread:
            with self._lock:
                in_backward = torch._C._current_graph_task_id() != -1
                calls, backward = self._inside(self._thread)
                if (calls and not backward) if in_backward else (calls or backward):
                    raise UsageError(MSG_THREADS)
                if not in_backward:
                    self._thread = me

    def _inside(self, thread: int) -> tuple[bool, bool]:
        """Whether a thread is in a call, and in a backward."""
        frames = list(_frames(thread))
        called = [frame.f_locals["self"] for frame in frames if frame.f_code is _CALL]
        models = [model for model in (known() for known in self._models) if model is not None]
        parts = {id(part) for model in models for part in model.modules()} if called else set()
        return any(id(module) in parts for module in called), any(frame.f_code is _BACKWARD for frame in frames)


def _frames(thread: int) -> Iterator[types.FrameType]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back
