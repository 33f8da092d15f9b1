"""Modes of torch that count or keep what operators give: making a program is nothing of the model's.

Selective checkpointing finds what an operator gave by how often it has run before, in the forward and again; a counter of flops
would count a trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch.utils import checkpoint, flop_counter
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode_temporarily

_HEARING = frozenset({checkpoint.__name__, flop_counter.__name__})


def unheard() -> AbstractContextManager[None]:
    """Inside, no such mode hears of an operator: what makes a program runs at the first call, and not when that runs again."""
    return _without_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


@contextmanager
def _without_modes() -> Iterator[None]:
    modes = _get_current_dispatch_mode_stack()
    hears = any(type(mode).__module__ in _HEARING for mode in modes)
    with ExitStack() as popped:  # those of this thread alone: others may trace
        for _ in modes if hears else ():
            popped.enter_context(_pop_mode_temporarily())
        yield
