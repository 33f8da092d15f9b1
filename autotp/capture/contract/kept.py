"""Who keeps the tensors of a block for its backward: a program keeps what its own backward needs, and runs nothing again."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import checkpoint


def keeper() -> Any:
    """The hook that gets what is kept for a backward now, None if there is none."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks and hooks[0]


def runs_again(hook: Any) -> bool:
    """Returns if a hook keeps nothing, since the backward runs the Python of the block again."""
    return getattr(hook, "__globals__", None) is vars(checkpoint)
