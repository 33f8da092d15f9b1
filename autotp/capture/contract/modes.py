"""torch's modes: what says how code computes, wherever it stands. If gradients and autocast are on is in a call's key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack

_OWN = __name__.partition(".")[0] + ".capture"


def _function_modes() -> tuple[Any, ...]:
    """The modes that see every function of torch (a default device is one), but for our own."""
    if not torch._C._len_torch_function_stack():
        return ()
    modes = [mode for mode in _get_current_function_mode_stack() if not type(mode).__module__.startswith(_OWN)]
    return tuple((type(mode), getattr(mode, "device", None)) for mode in modes)


@dataclass(frozen=True)
class Modes:
    """The modes at the time this is made."""

    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    functions: tuple[Any, ...] = field(default_factory=_function_modes)

    def hold(self) -> bool:
        """Returns if they are the same now."""
        return torch.get_default_dtype() is self.default_dtype and _function_modes() == self.functions
