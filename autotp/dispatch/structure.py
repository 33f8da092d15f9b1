"""Which modules and parameters a unit has: programs are for these, and others get programs of their own."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from ..axes.layout import Layout
from ..runtime.cut.origin import IsCut, parts_only
from ..runtime.groups.ranks import Ranks
from ..runtime.layers.parallel import layer_of, remove_layer
from .held import held_in, join_path

Signature: TypeAlias = tuple[Any, ...]


class Structure:
    """The modules and parameters of a module, as they are when this is made; `is_same()` says if they are still those.

    Every call asks, so the question is one line of Python for this module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.modules = tuple(module.modules())
        self.is_same = self._question()

    def _question(self) -> Callable[[], bool]:
        scope: dict[str, Any] = {}
        terms: list[str] = []

        def named(value: object) -> str:
            scope[f"v{len(scope)}"] = value
            return f"v{len(scope) - 1}"

        for part in self.modules:
            for kind in ("_modules", "_parameters"):
                held = vars(part)[kind]
                own = named(held)
                terms += [
                    f"{named(vars(part))}[{kind!r}] is {own}",
                    f"len({own}) == {len(held)}" if held else f"not {own}",
                ]
                terms += [f"{own}[{name!r}] is {named(value)}" for name, value in held.items()]
        exec(_code_of(" and ".join(terms)), scope)
        question: Callable[[], bool] = scope["is_same"]
        return question


@functools.lru_cache(maxsize=256)
def _code_of(terms: str) -> types.CodeType:
    """The code of a question. Equal blocks ask in equal words, of other things."""
    text = f"def is_same():\n    try:\n        return {terms}\n    except KeyError:\n        return False"
    return compile(text, "<autotp structure>", "exec")


def inner_modules(module: nn.Module) -> Iterator[nn.Module]:
    """All modules within a module."""
    return (part for part in module.modules() if part is not module)


def layouts_in(module: nn.Module) -> dict[str, tuple[Layout, ...]]:
    """How parameters within a module are cut, by the names that they have now."""
    return {name: held.layouts for name, held in held_in(module)}


def signature_of(module: nn.Module) -> Signature:
    """What two modules have in common that may have programs in common: where modules and parameters are, which of these are
    one, of which sizes, and how they are cut."""
    number: dict[int, int] = {}
    places: list[tuple[Any, ...]] = []
    for path, part in module.named_modules(remove_duplicate=False):
        places.append((path, number.setdefault(id(part), len(number)), layer_of(part) is not None))
        for name, own in part._parameters.items():
            if own is None:
                places.append((join_path(path, name),))
                continue
            cut = own.autotp_origin if isinstance(own, IsCut) else None
            size = None if is_lazy(own) else tuple(own.shape if cut is None else cut.shape)
            places.append((join_path(path, name), number.setdefault(id(own), len(number)), size, cut and cut.layouts))
    return tuple(places)


def remove_stale_layers(module: nn.Module) -> None:
    """Take the parallel layers from the modules whose parameters are not the ones, cut as they were, any more."""
    for part in list(module.modules()):
        layer = layer_of(part)
        if layer is not None:
            held: Iterable[tuple[str, Any]] = part._parameters.items()
            if {name: own.autotp_origin.layouts for name, own in held if isinstance(own, IsCut)} != layer.layouts:
                remove_layer(part)


def check_equal(module: nn.Module, ranks: Ranks, path: str) -> None:
    """Raises PlacementError on every rank unless all ranks have the same numbers in the parameters that are not cut.

    Parameters without data, meta and fake ones, have no numbers.
    """
    layouts, digest = layouts_in(module), hashlib.sha256()
    with parts_only(), torch.no_grad():
        for name, parameter in module.named_parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()
            if name not in layouts and not local.is_meta and not is_fake(local):
                digest.update(local.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    ranks.check_agreement(digest.hexdigest(), f"parameters in the modules that {path} was given")
