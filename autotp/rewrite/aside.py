"""Modules that share a cut parameter and belong to no unit: the model never calls them by itself, but somebody may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..axes.layout import Layout
from ..runtime.cut.origin import parts_only
from ..runtime.ranks import Ranks
from .whole import gathered


class WholeForward:
    """Takes the place of such a module's `forward`: runs it with whole parameters, gathered for this one call."""

    def __init__(self, module: nn.Module, ranks: Ranks, layouts: Mapping[str, Sequence[Layout]]) -> None:
        self.module, self.ranks, self.layouts = module, ranks, dict(layouts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        held = dict(self.module._parameters)
        try:
            for name, layouts in self.layouts.items():
                with parts_only():
                    self.module._parameters[name] = gathered(held[name], self.ranks, layouts)  # type: ignore[assignment, arg-type]
            return type(self.module).forward(self.module, *args, **kwargs)
        finally:
            self.module._parameters.update(held)
