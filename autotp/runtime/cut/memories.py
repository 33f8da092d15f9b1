"""Who else has the memory of a tensor, and what they share."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

# What tensors of one memory share beside it (a `Memory`), by that memory, where autograd hands it on without asking.
_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


@dataclass
class Memory:
    """What tensors that share their memory share too: how often it was written to through one of them. Autograd counts its own
    writes in a gradient, and not in `.data` of that, which has a count of its own; so a tensor with the first count is kept."""

    writes: int = 0
    counted: torch.Tensor | None = None

    def watch(self, first: torch.Tensor) -> None:
        """Count what is written without asking, from the first `.data` on that is made of the memory."""
        if self.counted is None and not first.is_inference() and not hasattr(first, "_spec"):
            self.counted = first.as_subclass(torch.Tensor).detach()

    def counting(self, own: torch.Tensor) -> torch.Tensor:
        """A plain tensor over the memory whose writes are counted: in place of one whose count nobody asks for any more."""
        kept = self.counted
        if kept is None or own.requires_grad or own.is_complex() or not is_same_memory(own, kept):
            return own
        alike = own.dtype is kept.dtype and (own.shape, own.stride()) == (kept.shape, kept.stride())
        return kept.detach() if alike and own.storage_offset() == kept.storage_offset() else own


def holders_of(value: torch.Tensor) -> int:
    """How many tensors have the memory of one, itself included; 0 for one that has none that can be counted."""
    if not _has_memory(value):
        return 0
    return int(torch._C._storage_Use_Count(value.untyped_storage()._cdata)) - 1  # what asks


def _has_memory(value: torch.Tensor) -> bool:
    """Returns if a tensor has memory of its own: none that is distributed, sparse, or wrapped by a transform of functions."""
    is_plain = value.layout is torch.strided and not hasattr(value, "_spec")
    return is_plain and not torch._C._functorch.is_functorch_wrapped_tensor(value)


def is_same_memory(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns if two tensors have the same memory."""
    if not (_has_memory(value) and _has_memory(other)):
        return False
    return value.untyped_storage()._cdata == other.untyped_storage()._cdata


def like(view: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """What a view is on other memory that is laid out as its own."""
    if view.dtype is not root.dtype:
        ratio = max(view.element_size() // root.element_size(), 1)
        root = root.as_strided((root.untyped_storage().nbytes() // root.element_size() // ratio * ratio,), (1,), 0)
        root = root.view(view.dtype)
    made = root.as_strided(view.shape, view.stride(), view.storage_offset())
    made = made.conj() if view.is_conj() else made
    return torch._neg_view(made) if view.is_neg() else made


def note_memory(value: torch.Tensor, shared: Any) -> None:
    """Remember what others over the memory of a tensor share, while one of them is there."""
    if _has_memory(value):
        _known[value.untyped_storage()._cdata] = shared


def known_memory(value: torch.Tensor) -> Any:
    """What was remembered for the memory of a tensor; None where nothing was."""
    return _known.get(value.untyped_storage()._cdata) if _known and _has_memory(value) else None


def state_of(value: torch.Tensor, counted: bool = True) -> int | torch.Tensor:
    """What tells later if a tensor was written to: how often it was, or what is in it where torch does not count."""
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return 0
    return value.detach().clone() if value.is_inference() or not counted else value._version


def is_written(value: torch.Tensor, before: int | torch.Tensor) -> bool:
    """Returns if a tensor was written to since its state was this; what is in it is alike on all ranks, and so is the answer."""
    if isinstance(before, torch.Tensor):
        return not torch.equal(value, before) and not torch.allclose(value, before, rtol=0, atol=0, equal_nan=True)
    return bool(state_of(value) != before)
