"""The modules of a unit as plain attributes: `nn.Module` finds its own through a function, at each step to every layer."""

from __future__ import annotations

from typing import Any

from torch import nn

_MODULE = ""  # the one name that no module within another can have


class Within:
    """Has the attributes of a module, those that are modules at once; who uses it sees to it that they stay the same."""

    def __init__(self, module: nn.Module) -> None:
        children = {name: within(child) for name, child in module._modules.items() if child is not None}
        vars(self).update(children | {_MODULE: module})

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)[_MODULE], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[_MODULE](*args, **kwargs)


def within(module: nn.Module) -> nn.Module | Within:
    """A module, or what stands for it where there are modules within it."""
    return Within(module) if any(child is not None for child in module._modules.values()) else module
