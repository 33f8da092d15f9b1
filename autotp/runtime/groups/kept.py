"""Logits that a model returns cut: a distributed tensor of torch's, which sends only what all ranks come to together.

torch's own collectives wait for as long as the process group says for ranks that never come. So before each of them the
ranks meet, as they do before everything that is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ...axes.layout import Factor
from ...errors import RankLostError
from .ranks import Ranks

MSG_ALONE = (
    "{error}; logits are cut over the ranks, and all of them compute {what} together: call it on every rank, or take .to_local(),"
    " this rank's part"
)
_FUNCTIONAL = ("_c10d_functional", "_dtensor")


class KeptLogits(DTensor):
    """A distributed tensor, and what is made of it, of which one rank alone can ask for nothing but its part."""

    ranks: Ranks
    _meets = False

    @staticmethod
    def of(tensor: DTensor, ranks: Ranks) -> KeptLogits:
        """The same distributed tensor, with its memory and history."""
        tensor.__class__ = KeptLogits
        tensor.__dict__["ranks"] = ranks
        return tensor  # type: ignore[return-value]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = next(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, KeptLogits))
        return kept.sent(func.__name__, lambda: func(*args, **(kwargs or {})))

    def full_tensor(self, **settings: Any) -> torch.Tensor:
        """The whole, on every rank; all ranks must call it."""
        return self.sent("full_tensor", lambda: DTensor.full_tensor(self, **settings))

    def redistribute(self, *args: Any, **kwargs: Any) -> DTensor:
        """The same cut otherwise; all ranks must call it."""
        return self.sent("redistribute", lambda: DTensor.redistribute(self, *args, **kwargs))

    def sent(self, what: str, compute: Callable[[], Any]) -> Any:
        """What a function gives that may send something; distributed tensors in it are such ones too."""
        with torch._C.DisableTorchFunctionSubclass():
            if self._meets:  # within another one of these
                return compute()
            self._meets = True
            try:
                with _Meeting(self.ranks, what):
                    result = compute()
            finally:
                self._meets = False

        def wrapped(leaf: Any) -> Any:
            return KeptLogits.of(leaf, self.ranks) if type(leaf) is DTensor else leaf

        return pytree.tree_map(wrapped, result)


class _Meeting(TorchDispatchMode):
    """Before a functional collective, all ranks meet."""

    def __init__(self, ranks: Ranks, what: str) -> None:
        super().__init__()
        self.ranks, self.what = ranks, what

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, as what the distributed tensor makes of it
        if func.namespace in _FUNCTIONAL and func is not torch.ops._c10d_functional.wait_tensor.default:
            self.meet()
        return func(*args, **(kwargs or {}))

    def meet(self) -> None:
        """Raises RankLostError where another rank ends, or comes to something else."""
        try:
            with _disable_current_modes(), self.ranks.about(f"{self.what} of logits"):
                nothing = torch.zeros(1, device=self.ranks.device)
                self.ranks.all_reduce(nothing, (Factor(self.ranks.size, 1),), "norm", "activation", "max")
        except RankLostError as error:
            raise RankLostError(MSG_ALONE.format(error=error, what=self.what)) from error
