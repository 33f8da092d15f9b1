"""Where a unit has no program its own Python runs, and the modules within it that have programs compute with their parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..capture.contract.kept import keeper
from ..runtime.cut.origin import IsCut
from .held import join_path
from .in_place import give_back
from .live import LiveUnit


def parts_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules within a module that can be called and have cut parameters, and where they are."""
    for name, child in module.named_children():
        if not any(isinstance(parameter, IsCut) for parameter in child.parameters()):
            continue
        if type(child).forward is not nn.Module.forward:
            yield name, child
        else:
            yield from ((join_path(name, inner), part) for inner, part in parts_of(child))


def keeping() -> tuple[Any, ...]:
    """Whether gradients are computed, and who keeps the tensors for the backward: what checkpointing changes for what it runs."""
    return torch.is_grad_enabled(), keeper()


@contextmanager
def in_place(forwards: Sequence[LiveUnit]) -> Iterator[None]:
    """Inside, these take the place of their modules' forwards; where a module has a `forward` of its own, that one stays."""
    free = [each for each in forwards if "forward" not in vars(each.module)]
    for each in free:
        each.module.forward = each  # type: ignore[assignment]
    try:
        yield
    finally:
        for each in free:
            if vars(each.module).get("forward") is each:  # else the unit's own Python has put another there
                give_back(each.module, None)
