"""Sizes while a trace observes: to the model's own code the symbol that stands for a number is one."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .frames import is_observed

# Classes of what stands for a number while a trace runs, with one that is like it.
STANDS_FOR: dict[type, Any] = {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}
_is_instance = builtins.isinstance


def is_instance(value: Any, kinds: Any) -> bool:
    """`isinstance`, for code of the model's also of symbols."""
    number = STANDS_FOR.get(type(value))
    if number is None or not is_observed(sys._getframe(1)):
        return _is_instance(value, kinds)
    return _is_instance(number, kinds)


@contextmanager
def symbols_are_numbers() -> Iterator[None]:
    """Inside, `isinstance` says of a symbolic size that it is an int, where the model's code asks."""
    before, builtins.isinstance = builtins.isinstance, is_instance
    try:
        yield
    finally:
        builtins.isinstance = before
