"""Placement of one unit: all of forward and backward, from cuts to a list of collectives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..axes.facts import Typing
from ..axes.layout import Cuts
from .conjugate import Backward, Price, place_backward
from .flow import Flow, flow
from .prepare import regroup_sums, split_biases, taken_apart
from .typed import TypedGraph
from .verify import check_pins, verify


@dataclass(frozen=True)
class Placement:
    """A graph, and where its collectives go."""

    typed: TypedGraph
    flow: Flow
    backward: Backward


def place(
    graph: torch.fx.Graph,
    typing: Typing,
    cuts: Cuts,
    price: Price,
    unread: frozenset[int] = frozenset(),
    *,
    keep: bool = False,
    backward: bool = True,
) -> Placement:
    """Place a traced graph under a choice of cuts; the traced graph is not changed.

    Results whose numbers are in `unread` leave the unit as slices, to be gathered if they are read after all; with `keep`
    all others do too, as distributed tensors.
    Raises UnsoundPlanError if a cut axis must be whole, PlacementError if the verifier finds a flaw.
    """
    typed = TypedGraph.copy_of(graph, typing)
    check_pins(typed, cuts)
    split_biases(typed, cuts)
    first = flow(typed, cuts, unread, keep=keep)
    if regroup_sums(typed, frozenset(node for node, over in first.partial.items() if over)):
        first = flow(typed, cuts, unread, keep=keep)
    placed = flow(typed, cuts, unread, keep=keep, early=taken_apart(typed, first))
    verify(typed, placed)
    return Placement(typed, placed, place_backward(typed, placed, price) if backward else Backward())
