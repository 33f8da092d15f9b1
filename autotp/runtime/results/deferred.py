"""Results that leave a unit as slices because nobody is known to read them, and become whole if somebody does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...errors import UsageError

MSG_UNSEEN = (
    "{operator} was given a result of a block that is still cut, by code that Python does not see (torch.func, C++); hand it"
    " result.clone()"
)


class Deferred(torch.Tensor):
    """A tensor that is made whole at its first use, by a collective that all ranks reach together."""

    _make: Callable[[], torch.Tensor]
    _whole: torch.Tensor | None

    @staticmethod
    def of(local: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> Deferred:
        """Defer a function of a local slice."""
        value: Deferred = torch.Tensor._make_wrapper_subclass(Deferred, (0,), dtype=local.dtype, device=local.device)
        value.__dict__.update(_make=lambda: make(local), _whole=None)
        return value

    def whole(self) -> torch.Tensor:
        """The whole value."""
        state = self.__dict__
        if state["_whole"] is None:
            state["_whole"] = state["_make"]()
        return state["_whole"]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(value: Any) -> Any:
            return value.whole() if isinstance(value, Deferred) else value

        with torch._C.DisableTorchFunctionSubclass():
            args, kwargs = pytree.tree_map(plain, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise UsageError(MSG_UNSEEN.format(operator=func))
