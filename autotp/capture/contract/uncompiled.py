"""While anything is observed, functions that `torch.compile` has wrapped run as they are written: dynamo would compile what
observes, too, and fx refuses what is compiled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_lock = threading.Lock()
_inside = [0]
_settings = ExitStack()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, nothing is compiled, in no thread: torch has one setting for all of them."""
    with _lock:
        _inside[0] += 1
        if _inside[0] == 1:
            _settings.enter_context(torch.compiler.set_stance("force_eager"))
    try:
        with torch._dynamo.config.patch(error_on_nested_fx_trace=False):
            yield
    finally:
        with _lock:
            _inside[0] -= 1
            if not _inside[0]:
                _settings.close()
