"""A checkpoint for a module that a user's own code builds: of any library that names tensors as the module does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from ..checkpoint.folder import read_weights
from ..checkpoint.lazy import Lazy
from ..checkpoint.load import empty
from ..errors import CheckpointError, UsageError
from .opening import Opened, seen

MSG_KIND = "build= must return an nn.Module, not {kind}"
MSG_SHAPE = "tensor {name!r} of {source} has the shape {found}, and that of the {kind} is {wanted}"
MSG_NAMES = "{source} {what} tensor {first!r}{more}; build= must make the model whose checkpoint it is"
MSG_NO_VALUES = (
    "{name} of the {kind} is on the meta device, and {source} has no values for it; let build= make the model without"
    ' torch.device("meta"): parameters go there by themselves, and what is computed keeps its values'
)


@dataclass(frozen=True)
class Built:
    """A model whose parameters are lazy tensors of a checkpoint: it may be changed, cast and called before it is opened."""

    source: Path
    model: nn.Module
    stored: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    seen: tuple[int, ...]

    def opened(self) -> Opened:
        """The checkpoint with the model on the meta device. What was put into the model meanwhile is left as it is."""
        return Opened(self.source, self.model, empty(self.model), self.stored, seen=self.seen)


def build_lazily(build: Callable[[], nn.Module], source: str | Path, dtype: torch.dtype | None) -> Built:
    """Build a model in eval mode whose tensors are those of a file or folder, and read none of them.

    `dtype` is what floating point numbers are cast to; without it they are as in the file.

    Raises CheckpointError if a tensor is missing, unexpected or of a wrong shape, UsageError if something would have no values.
    """
    path = Path(source)
    before, entries = seen(path), read_weights(path)
    with _parameters_on_meta():
        model = build()
    if not isinstance(model, nn.Module):
        raise UsageError(MSG_KIND.format(kind=type(model).__name__))
    lazy = {name: _cast(Lazy.of(entry, entry.shape, entry.dtype), dtype) for name, entry in entries.items()}
    _put(model, path, lazy)
    _check_values(model, path)
    stored = {name: (entry.dtype, tuple(entry.shape)) for name, entry in entries.items()}
    return Built(path, model.eval(), stored, before)


def _cast(tensor: Lazy, dtype: torch.dtype | None) -> Any:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters go to the meta device as modules get them, so that a model is never in memory; all else is made for real."""
    register, moved = nn.Module.register_parameter, WeakTensorKeyDictionary()  # a tie may be made of what is real

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if type(parameter) is nn.Parameter and not parameter.is_meta:
            if parameter not in moved:
                moved[parameter] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
            module._parameters[name] = moved[parameter]

    kind: Any = nn.Module
    kind.register_parameter = on_meta
    try:
        yield
    finally:
        kind.register_parameter = register


def _put(model: nn.Module, source: Path, tensors: Mapping[str, Any]) -> None:
    """Put tensors in the place of a model's own of the same names; one that is tied may be under any of its names."""
    kind = type(model).__name__
    own = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    unknown = tensors.keys() - own.keys()
    found = {id(own[name]): tensor for name, tensor in reversed(list(tensors.items())) if name in own}
    missing = [name for name, tensor in own.items() if id(tensor) not in found]
    for what, names in (("lacks", missing), ("has the unexpected", unknown)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(MSG_NAMES.format(source=source, what=what, first=min(names), more=more))
    for name, tensor in own.items():
        if name in tensors and tensors[name].shape != tensor.shape:
            shapes = {"found": tuple(tensors[name].shape), "wanted": tuple(tensor.shape)}
            raise CheckpointError(MSG_SHAPE.format(name=name, source=source, kind=kind, **shapes))
    made: dict[int, Any] = {}
    for module in model.modules():
        slots: dict[str, Any]
        for slots in (module._parameters, module._buffers):
            for name in [name for name, value in slots.items() if id(value) in found]:
                slots[name] = made.setdefault(id(slots[name]), _like(slots[name], found[id(slots[name])]))


def _like(tensor: Any, value: torch.Tensor) -> torch.Tensor:
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(value, requires_grad=tensor.requires_grad) if is_parameter else value


def _check_values(model: nn.Module, source: Path) -> None:
    """Raises UsageError for a tensor of the model that has no values: neither in the file, nor by the code that built it."""
    for path, module in model.named_modules():
        for slots in (module._parameters, module._buffers, vars(module)):
            for name, tensor in slots.items():
                if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                    full = f"{path}.{name}" if path else name
                    raise UsageError(MSG_NO_VALUES.format(name=full, kind=type(model).__name__, source=source))
