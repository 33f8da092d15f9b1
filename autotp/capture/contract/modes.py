"""Modes of torch and of Python: what says how code computes, wherever it stands.

If gradients and autocast are on is in a call's key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import getcontext
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack

_PACKAGE = __name__.partition(".")[0]
_TRACING = _PACKAGE + ".capture"


def _function_modes() -> tuple[Any, ...]:
    """The modes that see every function of torch (a default device is one), but for those of a trace itself."""
    if not torch._C._len_torch_function_stack():
        return ()
    modes = [mode for mode in _get_current_function_mode_stack() if not type(mode).__module__.startswith(_TRACING)]
    return tuple((type(mode), getattr(mode, "device", None)) for mode in modes)


def _decimals() -> tuple[Any, ...]:
    """How decimal numbers are rounded in this thread, which their arithmetic asks without any Python."""
    context = getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax


@dataclass(frozen=True)
class Modes:
    """The modes at the time this is made."""

    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    functions: tuple[Any, ...] = field(default_factory=_function_modes)
    inference: bool | None = field(default_factory=torch.is_inference_mode_enabled)  # None if it may be either
    deterministic: bool = field(default_factory=torch.are_deterministic_algorithms_enabled)
    decimals: tuple[Any, ...] = field(default_factory=_decimals)
    transforms: bool = field(default_factory=torch._C._are_functorch_transforms_active)

    def stranger(self) -> str | None:
        """A mode that would see the functions of a program in place of the model's, None if there is none."""
        if self.transforms:
            return "a transform of torch.func"
        names = (f"{kind.__module__}.{kind.__qualname__}" for kind, _ in self.functions)
        return next((name for name in names if name.partition(".")[0] not in ("torch", _PACKAGE)), None)

    def hold(self) -> bool:
        """Returns if they are the same now."""
        return (
            torch.get_default_dtype() is self.default_dtype
            and self.inference in (None, torch.is_inference_mode_enabled())
            and torch.are_deterministic_algorithms_enabled() is self.deterministic
            and _function_modes() == self.functions
            and _decimals() == self.decimals
            and torch._C._are_functorch_transforms_active() is self.transforms
        )
