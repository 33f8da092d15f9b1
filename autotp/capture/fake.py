"""The mode under which tensors of a trace are fake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import (
    get_proxy_mode,
    get_proxy_slot,
    maybe_enable_thunkify,
    track_tensor,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .quick import Quick

# Operators after which it pays to remember what each makes: few where sizes are numbers, many where they are symbols.
SOON, LATE = 300, 3000


# Every operator is compared with these, and whoever asks torch for a name may be observed.
_DEVICE, _DETACH = torch.ops.prim.device.default, torch.ops.aten.detach.default


class TracedFakes(FakeTensorMode):
    """Keeps the node of a new tensor that is copied because somebody else holds it.

    torch's factory functions (`torch.arange`, `torch.full_like`) hand their result on as it is, or a copy of it if there is a
    second reference. There is one while a profiler, or a thread that reads stacks, holds the frames of the functions that
    made it. The copy is made below the trace, which then takes it for a constant.

    torch remembers what each operator makes of which sizes. To remember takes as long as to find it out, and pays only where the
    same operators come again and again: in a long run, of more than `long` operators.
    """

    def __init__(self, shape_env: ShapeEnv, long: int = LATE) -> None:
        super().__init__(shape_env=shape_env, allow_non_fake_inputs=True)
        self.calls, self.long, self.quick = 0, long, Quick(self)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor and not self.in_kernel_invocation:
            return args[0].fake_device
        self.calls += 1
        self.cache_enabled = self.calls > self.long
        if func is _DETACH and not args[0].requires_grad:
            return self._copied(func, types, args)
        if (known := self.quick(func, args, kwargs or {})) is not None:
            return known
        return super().__torch_dispatch__(func, types, args, kwargs or {})

    def _copied(self, func: Any, types: Sequence[type], args: Any) -> Any:
        tracing = get_proxy_mode()
        if tracing is None:  # the trace knows of this call: it waits for the result
            return super().__torch_dispatch__(func, types, args, {})
        with maybe_enable_thunkify():  # sizes that making the copy computes are no nodes, unless the model reads them
            copy: Any = super().__torch_dispatch__(func, types, args, {})
        node = get_proxy_slot(args[0], tracing.tracer, None)
        if node is not None:
            track_tensor(copy, node.proxy, constant=node.constant, tracer=tracing.tracer)
        return copy


_described_by_torch: Any = vars(proxy_tensor)["_extract_tensor_metadata"]


def _described(value: torch.Tensor, include_contiguity: bool = True) -> Any:
    """What torch notes of a value beside the value, which nothing here reads: a tenth of the time of a trace is spent on how
    symbolic strides lie. Other traces have it as before."""
    is_ours = isinstance(getattr(value, "fake_mode", None), TracedFakes)
    return None if is_ours else _described_by_torch(value, include_contiguity)


setattr(proxy_tensor, "_extract_tensor_metadata", _described)  # noqa: B010
