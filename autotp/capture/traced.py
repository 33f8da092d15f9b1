"""A captured call: what a trace gives, and for which other calls it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import TraceError
from .contract.guards import Contract
from .contract.snapshot import Change
from .reads import HandleGuard, HandleRead
from .signature import CallSite, Slot
from .symbols import Guards, Symbols


class CaptureError(TraceError):
    """A unit could not be captured as it is; `contract` is what its Python had read until then, `changes` are as those of a
    WritesError."""

    def __init__(self, reason: str, contract: Contract, changes: tuple[Change, ...] = ()) -> None:
        super().__init__(re.sub(" at 0x[0-9a-f]+", "", reason))  # a plan is the same text on all ranks
        self.contract, self.changes = contract, changes


@dataclass(frozen=True, eq=False)
class Traced:
    """A captured call and the conditions under which it is valid for another one: `guards` on sizes and numbers, `handle_guards`
    on the call's objects, `contract` on the state that the unit's Python read.

    `symbols` are its sizes. `reads` are the numbers that it takes as further inputs, `positions` those for which alone it holds,
    None if it does for all units of equal shape; `unread` are the numbers of result tensors that nobody is known to read.
    """

    graph: torch.fx.Graph
    site: CallSite
    outputs: tuple[Any, ...]
    out_spec: pytree.TreeSpec
    guards: Guards
    handle_guards: tuple[HandleGuard, ...]
    reads: tuple[HandleRead, ...]
    constants: Mapping[str, torch.Tensor]
    positions: tuple[int, ...] | None
    contract: Contract
    symbols: Symbols
    unread: frozenset[int] = frozenset()

    def valid_for(self, site: CallSite, positions: tuple[int, ...]) -> bool:
        """Returns if the graph computes this call, given that the keys are equal."""
        if self.positions not in (None, positions):
            return False
        try:
            numbers = self.numbers(site, positions)
        except (LookupError, AttributeError, TypeError):
            return False  # an object has not what was read from another one
        return self.guards.hold(site.tensors, numbers) and all(
            guard.holds(site.handles, positions) for guard in self.handle_guards
        )

    def numbers(self, site: CallSite, positions: tuple[int, ...]) -> list[int]:
        """The numbers among the inputs: those of the call, then those read from its objects."""
        return [*site.numbers, *(read.of(site.handles, positions) for read in self.reads)]

    def result(self, tensors: list[torch.Tensor], handles: list[Any]) -> Any:
        """The call's result in its original structure from the tensors the graph returned."""
        values = {"tensor": tensors, "handle": handles}
        filled = [leaf.pick(values) if isinstance(leaf, Slot) else leaf for leaf in self.outputs]
        return pytree.tree_unflatten(filled, self.out_spec)
