"""Selective checkpointing counts operators: it finds what one gave by how often it has run before, in the forward and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode_temporarily


def beside_checkpoints() -> AbstractContextManager[None]:
    """Inside, a checkpoint hears of no operator: what makes a program runs at the first call, and not when that runs again."""
    return _without_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


@contextmanager
def _without_modes() -> Iterator[None]:
    modes = _get_current_dispatch_mode_stack()
    hears = any(type(mode).__module__ == checkpoint.__name__ for mode in modes)
    with ExitStack() as popped:  # those of this thread alone: others may trace
        for _ in modes if hears else ():
            popped.enter_context(_pop_mode_temporarily())
        yield
