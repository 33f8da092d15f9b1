"""A unit of a model as it is now: its module, what the module's Python finds, and what was compared with the other ranks."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..capture.contract.guards import Bound, Contract
from ..capture.signature import first_parameter
from ..capture.units import Unit
from ..errors import TraceError
from ..rewrite.build import Program
from ..runtime.groups.ranks import Ranks
from .held import dense_structure
from .in_place import InPlace
from .within import Within, within


class LiveUnit(InPlace):
    """What is asked of a unit where a call looks for its program; `own_forward` is the module's own `forward`, or None."""

    def __init__(self, module: nn.Module, unit: Unit, ranks: Ranks) -> None:
        self.module, self.unit, self.ranks = module, unit, ranks
        self.own_forward = module.__dict__.get("forward")
        self.agreed: list[Program] = []  # programs that are known to be the same on all ranks
        self.bounds: dict[Contract, Bound] = {}
        # The model, if no module with parameters comes after this unit in it: a loss may be what reads its result.
        self.ends: weakref.ref[nn.Module] | None = None

    @property
    def positions(self) -> tuple[int, ...]:
        """The unit's places among its siblings, as its attributes say. Raises TraceError where one is no number now."""
        found = tuple([held.get(name) for held, name in self.places])
        if not {int}.issuperset(map(type, found)):
            raise TraceError("an attribute that was the block's place among its siblings is no number any more")
        return found  # type: ignore[return-value]

    @functools.cached_property
    def places(self) -> tuple[tuple[dict[str, Any], str], ...]:
        """Where the unit's positions are: whose attributes, and their names."""
        return self.unit.position_places(self.module)

    def may_give_cut(self) -> bool:
        """Returns if a loss may be what reads the result, and no backward hook before it: those look at tensors only."""
        model = None if self.ends is None else self.ends()
        return model is not None and not any(m._backward_hooks or m._backward_pre_hooks for m in model.modules())

    def holds(self, contract: Contract, given: Sequence[torch.Tensor] = ()) -> bool:
        """Returns if what a trace leaned on is in this unit as the trace found it, for a call with these tensors."""
        bound = self.bounds.get(contract)
        if bound is None or not bound.holds():
            bound = contract.bind(self.module, again=bound is not None)
        if bound is None:
            self.bounds.pop(contract, None)
            return False
        self.bounds[contract] = bound
        return bound.memory.is_apart(given)

    @functools.cached_property
    def parts(self) -> nn.Module | Within:
        """The module as programs take it, for as long as it has the same modules."""
        return within(self.module)

    def first_parameter(self) -> nn.Parameter | None:
        """The first of the module's parameters, by whose dtype and device calls are told apart."""
        return None if self._first is None else self._first[0].get(self._first[1])

    @functools.cached_property
    def _first(self) -> tuple[dict[str, nn.Parameter | None], str] | None:
        return first_parameter(self.module)

    def forget(self) -> None:
        """Ask again for what depends on which modules and parameters there are."""
        for name in ("parts", "_first", "places"):
            vars(self).pop(name, None)
        self.bounds.clear()

    def current_structure(self) -> nn.Module:
        """The dense structure of the live module as it is now, with the state of its Python."""
        twin = dense_structure(self.module, hooks=True, attribute=lambda tensor: tensor)
        if self.own_forward is None:
            twin.__dict__.pop("forward", None)
        return twin
