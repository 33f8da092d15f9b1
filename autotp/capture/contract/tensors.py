"""Python attributes of tensors, while a trace observes: whoever asks a tensor for one that it does not have, or sets one, tells.

A trace runs on tensors that stand for the state's own and have none of their attributes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, SymNumberMemoDescriptor

from .frames import is_observed
from .source import MISSING

_OF_NUMBERS = "_wrapped_number"  # torch's operators mark numbers that they have made tensors of
# torch's own code that makes a fake tensor, which sets some thirty attributes each time.
_MAKING = frozenset({FakeTensor.__new__.__code__, SymNumberMemoDescriptor.__set__.__code__})


class Listener(Protocol):
    """Whoever is told. One that is `lenient` does not hear of what is set."""

    lenient: bool

    def asked(self, tensor: torch.Tensor, name: str) -> Any:
        """The attribute of the tensor that one stands for, MISSING if that has none."""

    def set(self, name: str) -> None:
        """The traced code is about to set an attribute that tensors do not have by themselves."""


@contextmanager
def telling(listener: Listener, thread: int) -> Iterator[None]:
    """Inside, what runs in one thread tells a listener."""
    kind: Any = torch.Tensor
    original = kind.__setattr__

    def is_asked(tensor: torch.Tensor, name: str) -> bool:
        """Returns if the model's code is what reads or sets a name of a tensor. Those of a class of its own have attributes."""
        own = name == _OF_NUMBERS or name.startswith("__")  # which torch and Python ask for by themselves
        own |= type(tensor).__module__.partition(".")[0] != "torch"
        return threading.get_ident() == thread and not own and is_observed(sys._getframe(2))

    def missing(tensor: torch.Tensor, name: str) -> Any:
        found = listener.asked(tensor, name) if is_asked(tensor, name) else MISSING
        if found is MISSING:
            raise AttributeError(f"{type(tensor).__name__!r} object has no attribute {name!r}")
        return found

    def give(tensor: torch.Tensor, name: str, value: Any) -> None:
        if sys._getframe(1).f_code not in _MAKING and not hasattr(type(tensor), name) and is_asked(tensor, name):
            listener.set(name)
        original(tensor, name, value)

    access = {"__getattr__": missing} if listener.lenient else {"__getattr__": missing, "__setattr__": give}
    before = {name: vars(kind)[name] for name in access if name in vars(kind)}
    for name, function in access.items():
        setattr(kind, name, function)
    try:
        yield
    finally:
        for name in access:
            if name in before:
                setattr(kind, name, before[name])
            else:
                delattr(kind, name)
