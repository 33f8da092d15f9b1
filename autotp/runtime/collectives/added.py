"""Nodes of autograd's graph that the dense model's has not: nobody is to see that they are there."""

from __future__ import annotations

from typing import Any

import torch

# The place in line of what accumulates gradients, which torch runs as soon as it has them.
_AT_ONCE = 2**64 - 1
# Who has a gradient that nobody else has, while a node computes with it: the node, and the one who asks.
_ALONE = 1
SHARED = "autotp_shared"  # the attribute of a gradient that has been handed on as another one, or of a part of such


def at_once(node: Any) -> None:
    """Let a node run as soon as its gradients are there, so that hooks before it and behind it run in the dense model's order."""
    if node is not None and not torch.compiler.is_compiling():
        node._set_sequence_nr(_AT_ONCE)


def is_shared(gradient: torch.Tensor) -> bool:
    """Returns if somebody else has the memory of a gradient that a node is given. Two who are given views of all of one have it
    both, the second one too, when the first has made it the gradient of a parameter; views of some of it are each somebody's."""
    if torch.compiler.is_compiling():
        return False
    own, base = gradient._use_count() > _ALONE, gradient._base  # type: ignore[attr-defined]
    if base is None or base.numel() != gradient.numel():
        return bool(own)
    shared = own or base._use_count() > _ALONE + 1 or SHARED in base.__dict__  # type: ignore[attr-defined]
    if shared:
        base.__dict__[SHARED] = True
    return bool(shared)
