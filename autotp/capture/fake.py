"""The mode under which tensors of a trace are fake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, set_proxy_slot


class TracedFakes(FakeTensorMode):
    """Keeps the node of a new tensor that is copied because somebody else holds it.

    torch's factory functions (`torch.arange`, `torch.full_like`) hand their result on as it is, or a copy of it if there is a
    second reference. There is one while a profiler, or a thread that reads stacks, holds the frames of the functions that
    made it. The copy is made below the trace, which then takes it for a constant.
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs or {})
        if func is torch.ops.aten.detach.default and not args[0].requires_grad:
            _keep_node(args[0], result)
        return result


def _keep_node(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    tracing = get_proxy_mode()
    node = None if tracing is None else get_proxy_slot(tensor, tracing.tracer, None)
    if tracing is not None and node is not None:
        set_proxy_slot(copy, tracing.tracer, node)
