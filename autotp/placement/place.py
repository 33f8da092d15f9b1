"""Placement of one unit: all of forward and backward, from cuts to a list of collectives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..axes.facts import Typing
from ..axes.layout import Cuts
from .conjugate import Enter, Price, SegmentSum, place_enters, segment_sums
from .flow import Flow, flow
from .prepare import regroup_sums, split_biases
from .typed import TypedGraph
from .verify import check_pins, verify


@dataclass(frozen=True)
class Placement:
    """A graph, and where its collectives go."""

    typed: TypedGraph
    flow: Flow
    enters: tuple[Enter, ...]
    segments: tuple[SegmentSum, ...]


def place(graph: torch.fx.Graph, typing: Typing, cuts: Cuts, price: Price, *, backward: bool = True) -> Placement:
    """Place a traced graph under a choice of cuts; the traced graph is not changed.

    Raises UnsoundPlanError if a cut axis must be whole, PlacementError if the verifier finds a flaw.
    """
    typed = TypedGraph.copy_of(graph, typing)
    check_pins(typed, cuts)
    split_biases(typed, cuts)
    first = flow(typed, cuts)
    regroup_sums(typed, frozenset(node for node, over in first.partial.items() if over))
    placed = flow(typed, cuts)
    verify(typed, placed)
    enters = place_enters(typed, placed, price) if backward else ()
    return Placement(typed, placed, enters, segment_sums(typed, cuts) if backward else ())
