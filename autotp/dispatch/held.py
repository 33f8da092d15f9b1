"""Which of a model's parameters are cut, by the names they have now, and the dense structure that the model stands for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ..capture.clone import on_meta
from ..runtime.cut.origin import IsCut, Origin
from ..runtime.layers.parallel import remove_layer

ATTRIBUTE = "_autotp"


def held_in(model: nn.Module) -> Iterator[tuple[str, Origin]]:
    """Every parameter that is cut, by all names that it has now."""
    for path, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if isinstance(parameter, IsCut):
                yield join_path(path, name), parameter.autotp_origin


def join_path(path: str, name: str) -> str:
    """The name of something in the module at a path, which is empty for the model itself."""
    return f"{path}.{name}" if path else name


def dense_structure(model: nn.Module, **options: Any) -> nn.Module:
    """The structure of a parallel model, or of a part of one, as it were dense, on the meta device: classes and shapes are
    those of the whole. `options` are those of `capture.clone`."""
    twin = on_meta(model, _whole_shapes(model), **options)
    for module in twin.modules():
        remove_layer(module)
    twin.__dict__.pop(ATTRIBUTE, None)
    return twin


def _whole_shapes(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """The whole's shape for every parameter that is cut, by identity."""
    parameters = model.parameters()
    return {
        id(parameter): tuple(parameter.autotp_origin.shape) for parameter in parameters if isinstance(parameter, IsCut)
    }
