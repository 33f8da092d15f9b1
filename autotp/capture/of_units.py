"""The parameters of units, by identity: the Python around units may use one by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from torch import nn

from .capturing import known_so_far
from .contract.source import own_attributes
from .units import parameters_of

# A module, and the path by which it is known.
_Holder: TypeAlias = tuple[nn.Module, str]


class OfUnits:
    """Units' modules, each with the path of the first unit of its shape, which names what they hold."""

    def __init__(self, modules: Sequence[_Holder]) -> None:
        known, key = known_so_far(), (OfUnits, *((id(module), path) for module, path in modules))
        if key not in known:
            known[key] = _found(modules), modules  # which keeps their identities
        self._holders: dict[int, _Holder] = known[key][0]  # of each parameter: the first module that has it

    def name_of(self, parameter: int) -> str | None:
        """The name of a parameter, by its identity; None if no unit has it."""
        holder = self._holders.get(parameter)
        if holder is None:
            return None
        named = (
            (f"{path}.{name}", held) for path, own in _parts_of(*holder) for name, held in own["_parameters"].items()
        )
        return next(name for name, held in named if id(held) == parameter)


def _found(modules: Sequence[_Holder]) -> dict[int, _Holder]:
    found: dict[int, _Holder] = {}
    for holder in reversed(modules):
        for parameter in parameters_of(holder[0]):
            found[id(parameter)] = holder
    return found


def _parts_of(module: nn.Module, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The attributes of each module in one, with its path. In a run that is observed it takes long to ask modules."""
    waiting: list[tuple[str, nn.Module | None]] = [(path, module)]
    seen = set[int]()
    while waiting:
        path, part = waiting.pop()
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            own = own_attributes(part)
            yield path, own
            waiting += [(f"{path}.{name}", inner) for name, inner in reversed(own["_modules"].items())]
