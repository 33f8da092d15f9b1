"""Traces of a survey, for the next one: in that other units are taken apart, and most are what they were."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ..capture.signature import CallSite
from ..capture.traced import Traced
from ..capture.units import Unit
from ..capture.varying import Seen, VaryingDims


class Traces:
    """The traces of units, with what varied between the calls of each."""

    def __init__(self) -> None:
        self._known: dict[Unit, tuple[Traced, tuple[Seen, ...]]] = {}

    def note(self, unit: Unit, traced: Traced, varying: VaryingDims) -> None:
        self._known[_key(unit)] = traced, varying.seen()

    def find(
        self, module: nn.Module, unit: Unit, site: CallSite, varying: VaryingDims, unread: frozenset[int]
    ) -> Traced | None:
        """The trace of a unit if it holds for it as it is now, and for how it is called now."""
        traced, seen = self._known.get(_key(unit), (None, ()))
        if traced is None or seen != varying.seen() or site.key != traced.site.key:
            return None
        if not traced.valid_for(site, unit.position_values(module)):
            return None
        holds = traced.contract.find(module, traced.contract.guards, {})
        return replace(traced, unread=unread) if holds else None


def _key(unit: Unit) -> Unit:
    return replace(unit, shape=0)  # every survey numbers them anew
