"""The marker of a value that is collected from all ranks where it is made, whatever its parameter's cut."""

from __future__ import annotations

import torch

from ..call import Call
from ..facts import Fact
from ..record import Rule
from ..term import axis


def collect(value: torch.Tensor) -> torch.Tensor:
    """Stands in a graph after an operator whose output may be cut and is then gathered at once."""
    return value


def collected(call: Call) -> Fact:
    """The dim that a weight brings in is an unknown of its own behind the marker: cutting it before does not cut it after."""
    (value,) = call.operands
    dims, brought = list(call.dims(value)), call.fact_of(value).brought
    dims[brought] = axis(dims[brought].size)
    everything = (frozenset([0]),)
    return Fact((tuple(dims),), (value,), linear=everything, zeros=everything, collects=True)


RULES: dict[str, Rule] = {"collect": collected}
