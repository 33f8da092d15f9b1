"""Gathered values that are kept for the backward as this rank's positions, and gathered again there.

What a chain's first products need of their input is the whole value on every rank, which would be most of what a block keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

_running = threading.local()


class Gathered:
    """A value that can be gathered again: as long as not all who kept it have had it back, it stays."""

    def __init__(self, gather: Callable[[], torch.Tensor]) -> None:
        self.gather, self.keepers, self.served = gather, 0, 0
        self.whole: torch.Tensor | None = None

    def serve(self) -> torch.Tensor:
        """The whole value for one of those who kept it."""
        whole = self.gather() if self.whole is None else self.whole
        self.served = (self.served + 1) % self.keepers
        self.whole = whole if self.served else None
        return whole


@dataclass(frozen=True)
class _Kept:
    """What is kept in place of a gathered value, or of a view of it."""

    value: Gathered
    size: torch.Size
    strides: tuple[int, ...]
    offset: int | torch.SymInt

    def get(self) -> torch.Tensor:
        return self.value.serve().as_strided(self.size, self.strides, self.offset)


def _without_history(tensor: torch.Tensor) -> torch.Tensor:
    """What a hook may keep of a tensor: an operator that saves its own result has that as its history, and would keep itself
    alive for good where no backward lets go of it. Autograd gives the history back to what the hook returns."""
    return tensor if tensor.grad_fn is None else tensor.detach()


class _Keeper:
    def __init__(self) -> None:
        # The reference keeps the identity of a storage from being used again, not its memory.
        self.known: dict[int, tuple[StorageWeakRef, Gathered]] = {}

    def pack(self, tensor: torch.Tensor) -> Any:
        found = self.known.get(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None
        if found is None:
            return _without_history(tensor)
        found[1].keepers += 1
        return _Kept(found[1], tensor.size(), tensor.stride(), tensor.storage_offset())


def _unpack(kept: Any) -> torch.Tensor:
    return kept.get() if type(kept) is _Kept else kept


@contextmanager
def gathering_again() -> Iterator[None]:
    """Inside, values noted as gathered are kept for the backward as what they were gathered from.

    Where somebody else says how values are kept, as checkpointing does, that holds and nothing is gathered again.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        yield
        return
    keeper = _Keeper()
    before, _running.keeper = getattr(_running, "keeper", None), keeper
    try:
        with saved_tensors_hooks(keeper.pack, _unpack):
            yield
    finally:
        _running.keeper = before


def note_gathered(whole: torch.Tensor, gather: Callable[[], torch.Tensor]) -> None:
    """Say how a value was gathered, and can be again."""
    keeper = getattr(_running, "keeper", None)
    if keeper is not None:
        storage = whole.untyped_storage()
        keeper.known[storage._cdata] = StorageWeakRef(storage), Gathered(gather)
