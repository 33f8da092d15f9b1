"""What is said at once of an operator's result, compared with what torch finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._sympy.functions import Max

# Where torch's own way from one view to another, or to a copy, asks for what nothing depends on.
NEEDLESS = {"aten.view.default", "aten._unsafe_view.default", "aten.copy_.default", "aten.convolution.default"}


def look(tensor: torch.Tensor, base: Any, empty: bool = True) -> tuple[Any, ...]:
    """All that is known of a fake tensor, with symbols as they are written; without `empty` strides as they are if it is not."""
    numbers: Any = (tensor.shape, tensor.stride(), [tensor.storage_offset()])
    if not empty:
        numbers = [[_of_some(size) for size in each] for each in numbers]
    kept = isinstance(base, torch.Tensor) and tensor.untyped_storage()._cdata == base.untyped_storage()._cdata
    return *([str(size) for size in each] for each in numbers), tensor.dtype, tensor.fake_device, kept  # type: ignore[attr-defined]


def _of_some(size: Any) -> Any:
    """A stride, if no size is none."""
    if isinstance(size, int):
        return size
    return sympy.expand(size.node.expr.replace(Max, lambda one, other: other if one == 1 else Max(one, other)))


def comparing(
    own: Callable[..., Any], seen: dict[str, int], wrong: list[str], conditions: bool = True
) -> Callable[..., Any]:
    """Does what `own` does, counts the operators that it answers for, and says which answers are not those of torch, and with
    `conditions` which come under other ones."""

    def both(self: Any, function: Any, args: Any, kwargs: Any) -> Any:
        made = own(self, function, args, kwargs)
        if made is not None:
            env: Any = self.mode.shape_env
            guards = len(env.guards)
            wanted: Any = FakeTensorMode.__torch_dispatch__(self.mode, function, (), args, kwargs)
            added = [guard.expr for guard in env.guards[guards:]]
            if added and conditions and str(function) not in NEEDLESS:
                wrong.append(f"{function} has no guards {added}")
            found, true = (
                [look(each, args[0], conditions) for each in (given if isinstance(given, tuple) else [given])]
                for given in (made, wanted)
            )
            if found != true or not isinstance(wanted, type(made)):  # named results are results
                wrong.append(f"{function} gives {found}, and not {true}")
            seen[str(function)] = seen.get(str(function), 0) + 1
        return made

    return both
