"""The parameters of units, by identity: the Python around units may use one by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

from torch import nn

from .capturing import known_so_far
from .contract.source import own_attributes

# A module, and the path by which it is known.
_Holder: TypeAlias = tuple[nn.Module, str]


class OfUnits:
    """Units' modules, each with the path of the first unit of its shape, which names what they hold."""

    def __init__(self) -> None:
        self.modules: list[tuple[nn.Module, str]] = []

    def name_of(self, parameter: int) -> str | None:
        """The name of a parameter, by its identity; None if no unit has it."""
        holder = self._holders.get(parameter)
        if holder is None:
            return None
        return next(name for name, held in _parameters_in(*holder) if held == parameter)

    @cached_property
    def _holders(self) -> dict[int, _Holder]:
        """Which of the modules has a parameter: the first one that does."""
        known, key = known_so_far(), (OfUnits, *((id(module), path) for module, path in self.modules))
        if key not in known:
            known[key] = self._found(), self.modules  # which keeps their identities
        found: dict[int, _Holder] = known[key][0]
        return found

    def _found(self) -> dict[int, _Holder]:
        return {parameter: holder for holder in reversed(self.modules) for _, parameter in _parameters_in(*holder)}


def _parameters_in(module: nn.Module, path: str) -> Iterator[tuple[str, int]]:
    """The parameters in a module by identity, with their names. In a run that is observed it takes long to ask modules."""
    waiting: list[tuple[str, nn.Module | None]] = [(path, module)]
    seen = set[int]()
    while waiting:
        path, part = waiting.pop()
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            own = own_attributes(part)
            yield from ((f"{path}.{name}", id(held)) for name, held in own["_parameters"].items())
            waiting += [(f"{path}.{name}", inner) for name, inner in reversed(own["_modules"].items())]
