"""A unit's call that no program is known for: computed as the dense model does, with weights gathered for this one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.stateless import _reparametrize_module

from ..axes.layout import Layout, factors_of, ordered
from ..runtime.collectives import gather
from ..runtime.cut.origin import parts_only
from ..runtime.ranks import Ranks

if TYPE_CHECKING:
    from .unit import UnitForward


def run_whole(unit: UnitForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The dense unit's result. All ranks compute the same from the same, so every gradient is that of the dense unit."""
    live = unit.module
    layouts = unit.compiler.layouts
    state: dict[str, torch.Tensor] = dict(live.named_buffers(remove_duplicate=False))
    for name, parameter in live.named_parameters(remove_duplicate=False):
        with parts_only():
            state[name] = gathered(parameter, unit.ranks, layouts[name]) if name in layouts else parameter
    with _reparametrize_module(unit.current_structure(), state):
        return unit.dense(*args, **kwargs)


def gathered(value: torch.Tensor, ranks: Ranks, layouts: Sequence[Layout]) -> torch.Tensor:
    """A whole parameter from every rank's slice."""
    for dim, layout in enumerate(layouts):
        over = ordered(factors_of(layout))
        if over:
            value = gather(value, ranks, over, dim, layout)
    return value
