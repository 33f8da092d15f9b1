"""Which modules a unit has within: programs are for these, and others get programs of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..axes.layout import Layout
from ..runtime.cut.origin import parts_only
from ..runtime.ranks import Ranks
from .held import held_in

Signature: TypeAlias = tuple[Any, ...]


class Structure:
    """The modules of a module, as they are when this is made."""

    def __init__(self, module: nn.Module) -> None:
        self.parents = [(part._modules, tuple(part._modules.values())) for part in module.modules() if part._modules]
        self.leaves = [part._modules for part in module.modules() if not part._modules]

    def same_modules(self) -> bool:
        """Returns if no module was put in, taken out or replaced."""
        return not any(self.leaves) and all(tuple(now.values()) == before for now, before in self.parents)


def inner_modules(module: nn.Module) -> Iterator[nn.Module]:
    """All modules within a module."""
    return (part for part in module.modules() if part is not module)


def layouts_in(module: nn.Module) -> dict[str, tuple[Layout, ...]]:
    """How parameters within a module are cut, by the names that they have now."""
    return {name: held.layouts for name, held in held_in(module)}


def signature_of(module: nn.Module) -> Signature:
    """What two modules have in common that may have programs in common: where modules are, which of these are one, and how
    their parameters are cut."""
    number: dict[int, int] = {}
    places = [
        (path, number.setdefault(id(part), len(number))) for path, part in module.named_modules(remove_duplicate=False)
    ]
    return tuple(places), tuple(sorted(layouts_in(module).items(), key=lambda item: item[0]))


def check_equal(module: nn.Module, ranks: Ranks, path: str) -> None:
    """Raises PlacementError on every rank unless all ranks have the same numbers in the parameters that are not cut."""
    layouts, digest = layouts_in(module), hashlib.sha256()
    with parts_only(), torch.no_grad():
        for name, parameter in module.named_parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()
            if name not in layouts and not local.is_meta:
                digest.update(local.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    ranks.check_agreement(digest.hexdigest(), f"parameters in the modules that {path} was given")
