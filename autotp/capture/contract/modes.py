"""Modes of torch and of Python: what says how code computes, wherever it stands.

If gradients and autocast are on is in a call's key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Context, getcontext
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_PACKAGE = __name__.partition(".")[0]
_TRACING = _PACKAGE + ".capture"


def _function_modes() -> tuple[Any, ...]:
    """The modes that see every function of torch (a default device is one), but for those of a trace itself."""
    if not torch._C._len_torch_function_stack():
        return ()
    modes = [mode for mode in _get_current_function_mode_stack() if not type(mode).__module__.startswith(_TRACING)]
    return tuple((type(mode), getattr(mode, "device", None)) for mode in modes)


def _operator_modes() -> tuple[type, ...]:
    """The modes of a user's own that see every operator: torch's count or record what runs, whatever that is."""
    if not torch._C._len_torch_dispatch_stack():
        return ()
    kinds = map(type, _get_current_dispatch_mode_stack())
    return tuple(kind for kind in kinds if not _is_known(f"{kind.__module__}.{kind.__qualname__}"))


def _is_known(name: str) -> bool:
    return name.partition(".")[0] in ("torch", _PACKAGE)


def _decimals() -> tuple[Any, ...]:
    """How decimal numbers are rounded in this thread, which their arithmetic asks without any Python."""
    context = getcontext()
    return context.prec, context.rounding, context.Emin, context.Emax, context.clamp


def _context() -> Context:
    return getcontext().copy()


@dataclass(frozen=True)
class Modes:
    """The modes at the time this is made."""

    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    functions: tuple[Any, ...] = field(default_factory=_function_modes)
    operators: tuple[type, ...] = field(default_factory=_operator_modes)
    inference: bool | None = field(default_factory=torch.is_inference_mode_enabled)  # None if it may be either
    deterministic: bool = field(default_factory=torch.are_deterministic_algorithms_enabled)
    decimals: tuple[Any, ...] = field(default_factory=_decimals)
    context: Context = field(default_factory=_context)  # which results of decimal numbers are errors
    transforms: bool = field(default_factory=torch._C._are_functorch_transforms_active)

    def stranger(self) -> str | None:
        """A mode that would see the functions of a program in place of the model's, None if there is none."""
        if self.transforms:
            return "a transform of torch.func"
        kinds = (*(kind for kind, _ in self.functions), *self.operators)
        names = (f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
        return next((name for name in names if not _is_known(name)), None)

    def hold(self) -> bool:
        """Returns if they are the same now."""
        return (
            torch.get_default_dtype() is self.default_dtype
            and self.inference in (None, torch.is_inference_mode_enabled())
            and torch.are_deterministic_algorithms_enabled() is self.deterministic
            and _function_modes() == self.functions
            and _operator_modes() == self.operators
            and _decimals() == self.decimals
            and getcontext().traps == self.context.traps
            and torch._C._are_functorch_transforms_active() is self.transforms
        )
