"""Asking of many units, one after the other, whether a contract holds for them."""

from __future__ import annotations

from typing import Any

from torch import nn

from .guards import Contract
from .source import Source


class Alike:
    """The units that a contract holds for.

    Most of what it reads lies within objects that all of them have, a configuration or a class: there the first unit is found to
    be right for all that have the very same objects in the same places.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract, self.own = contract, contract.guards
        self.first: dict[Source, Any] = {}  # what was found in the first of the units
        self.places: list[Source] = []  # where a unit has the objects that all have
        self.within: dict[Source, Any] = {}  # what is found in these

    def fits(self, unit: nn.Module) -> bool:
        """Returns if a unit could be bound: it takes a fraction of the time."""
        if self.within:
            found = self.within.copy()
            if all(place.get(unit, found) is self.first[place] for place in self.places):
                return self.contract.find(unit, self.own, found)
        found = {}
        if not self.contract.find(unit, self.contract.guards, found):
            return False
        if not self.first:
            self.first = found
        elif not self.within:
            self._compare(found)
        return True

    def _compare(self, second: dict[Source, Any]) -> None:
        """Find out what two units have in common; of each source its parent is found before it."""
        known = set[Source]()
        for source, value in self.first.items():
            if (source.parent is None and source.kind != "unit") or source.parent in known:
                self.within[source] = value
                known.add(source)
            elif second.get(source) is value:
                self.places.append(source)
                known.add(source)
        self.own = tuple(guard for guard in self.contract.guards if guard.source not in known)
