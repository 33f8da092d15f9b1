"""What a forward keeps for the backward: the memory that its operators made and that is still there behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Alive(TorchDispatchMode):
    """Notes the storages that operators make inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in pytree.tree_leaves(args) if type(leaf) is torch.Tensor}
        for leaf in pytree.tree_leaves(result):
            if type(leaf) is torch.Tensor and leaf.untyped_storage()._cdata not in given:
                storage = leaf.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    def bytes(self) -> int:
        """Bytes of those that are still alive."""
        return sum(size for storage, size in self.made.values() if not storage.expired())
