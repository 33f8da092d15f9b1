"""What a rank holds of a model's parameters, as their modules know it, and the dense structure that this stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..axes.layout import Layout
from ..capture.clone import on_meta
from ..runtime.layers import ParallelLayer

ATTRIBUTE, HELD = "_autotp", "_autotp_held"


@dataclass(frozen=True)
class Held:
    """How a parameter is cut, kept on the module that owns it, whatever that module is called later."""

    layouts: tuple[Layout, ...]
    shape: tuple[int, ...]


def held_in(model: nn.Module) -> Iterator[tuple[str, Held]]:
    """Every parameter that is cut, by all names that it has now."""
    for path, module in model.named_modules(remove_duplicate=False):
        for name, held in module.__dict__.get(HELD, {}).items():
            if module._parameters.get(name) is not None:
                yield join_path(path, name), held


def join_path(path: str, name: str) -> str:
    """The name of something in the module at a path, which is empty for the model itself."""
    return f"{path}.{name}" if path else name


def dense_structure(model: nn.Module, **options: Any) -> nn.Module:
    """The structure of a parallel model, or of a part of one, as it were dense, on the meta device: classes and shapes are
    those of the whole. `options` are those of `capture.clone`."""
    twin = on_meta(model, _whole_shapes(model), **options)
    for module in twin.modules():
        ParallelLayer.undo(module)
        module.__dict__.pop(HELD, None)
    twin.__dict__.pop(ATTRIBUTE, None)
    return twin


def _whole_shapes(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """The whole's shape for every parameter that is cut, by identity."""
    found = {}
    for module in model.modules():
        held: Mapping[str, Held] = module.__dict__.get(HELD, {})
        found.update({id(module._parameters[name]): own.shape for name, own in held.items()})
    return found
