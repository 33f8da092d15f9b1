"""Asking of many units, one after the other, whether a contract holds for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import nn

from .guards import Contract, Guard
from .source import MISSING, STEPS, Source, own_attributes

# How something is looked up, in what the step of this number led to, by which key; the object that all units have there; else
# what must be found.
_Step: TypeAlias = tuple[Callable[[Any, Any], Any], int, Any, Any, Guard | None]
_OWN = object()  # each unit has another
# What most that is asked for is found to be.
_NOTHING: dict[str, Any] = {"attribute": MISSING, "hooks": ()}


class Alike:
    """The units that a contract holds for.

    Most of what it reads lies within objects that all of them have, a configuration or a class: there the first unit is found to
    be right for all that have the very same objects in the same places.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.first: dict[Source, Any] = {}  # what was found in the first of the units
        self.within: dict[Source, Any] = {}  # what is found in objects that all have
        self.places: dict[Source, int] = {}  # what lies in a unit itself, by the number of the step that leads there
        self.steps: list[_Step] = []
        # What no unit has, by the number of the step to what could have it: attributes, and hooks.
        self.lacking: dict[int, tuple[set[str], set[str]]] = {}
        self.is_of_common = False  # which objects are one is known of the first

    def fits(self, unit: nn.Module) -> bool:
        """Returns if a unit could be bound: it takes a fraction of the time."""
        values = self._look(unit) if self.within else None
        if values is not None:
            return self._rest_holds(unit, values)
        found: dict[Source, Any] = {}
        if not self.contract.find(unit, self.contract.guards, found):
            return False
        if not self.first:
            self.first = found
        elif not self.within:
            self._compare(found)
        return True

    def _look(self, unit: nn.Module) -> list[Any] | None:
        """What a unit has at the places, in their order; None where that is not what was read there. Nothing is looked up in what
        another unit has not."""
        values: list[Any] = []
        for step, parent, key, common, guard in self.steps:
            holder = values[parent] if values else unit
            value = MISSING if holder is MISSING else step(holder, key)
            if value is not common and (common is not _OWN or not (guard is None or guard.holds(value))):
                return None
            values.append(value)
        for place, (absent, unhooked) in self.lacking.items():
            own = own_attributes(values[place])
            if not absent.isdisjoint(own) or any(map(own.get, unhooked)):
                return None
        return values

    def _rest_holds(self, unit: nn.Module, values: list[Any]) -> bool:
        if self.is_of_common:
            return self.contract.modes.hold()
        return self.contract.find(unit, (), self.within | dict(zip(self.places, values, strict=True)))

    def _compare(self, second: dict[Source, Any]) -> None:
        """Find out what two units have in common; of each source its parent is found before it."""
        known, guards = set[Source](), {guard.source: guard for guard in self.contract.guards}
        for source, value in self.first.items():
            if (source.parent is None and source.kind != "unit") or source.parent in known:
                self.within[source] = value
                known.add(source)
                continue
            is_common = second.get(source) is value
            parent = 0 if source.parent is None else self.places[source.parent]
            if is_common and value is _NOTHING.get(source.kind, _OWN):
                absent, unhooked = self.lacking.setdefault(parent, (set(), set()))
                (absent if source.kind == "attribute" else unhooked).add(source.key)
                self.within[source] = value
                known.add(source)
                continue
            common = value if is_common else _OWN
            self.steps.append((STEPS[source.kind], parent, source.key, common, guards.get(source)))
            self.places[source] = len(self.places)
            if is_common:
                known.add(source)
        self.is_of_common = not self.contract.aliases and known.issuperset(self.contract.objects)
