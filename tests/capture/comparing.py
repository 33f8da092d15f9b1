"""What is said at once of an operator's result, compared with what torch finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

# Where torch's own way from one view to another asks for what the view does not need.
NEEDLESS = {"aten.view.default", "aten._unsafe_view.default"}


def look(tensor: torch.Tensor, base: Any) -> tuple[Any, ...]:
    """All that is known of a fake tensor, with symbols as they are written."""
    numbers = (tensor.shape, tensor.stride(), [tensor.storage_offset()])
    kept = isinstance(base, torch.Tensor) and tensor.untyped_storage()._cdata == base.untyped_storage()._cdata
    return *([str(size) for size in each] for each in numbers), tensor.dtype, tensor.fake_device, kept  # type: ignore[attr-defined]


def comparing(own: Callable[..., Any], seen: dict[str, int], wrong: list[str]) -> Callable[..., Any]:
    """Does what `own` does, counts the operators that it answers for, and says which answers are not those of torch."""

    def both(self: Any, function: Any, args: Any, kwargs: Any) -> Any:
        made = own(self, function, args, kwargs)
        if made is not None:
            env: Any = self.mode.shape_env
            guards = len(env.guards)
            wanted = FakeTensorMode.__torch_dispatch__(self.mode, function, (), args, kwargs)
            added = [guard.expr for guard in env.guards[guards:]]
            if added and str(function) not in NEEDLESS:
                wrong.append(f"{function} has no guards {added}")
            if look(made, args[0]) != look(wanted, args[0]):
                wrong.append(f"{function} gives {look(made, args[0])}, and not {look(wanted, args[0])}")
            seen[str(function)] = seen.get(str(function), 0) + 1
        return made

    return both
