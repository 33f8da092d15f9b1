"""Placement of one unit: all of forward and backward, from cuts to a list of collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ..axes.facts import Typing
from ..axes.layout import Cuts
from ..errors import UnsoundPlanError
from .backward import Backward, Price
from .between import steps_between
from .calls import Together, calls, seconds_of
from .certificate.values import Contract, Mesh
from .conjugate import place_backward
from .flow import flow
from .norms import write_out_norms, write_out_running_statistics
from .prepare import regroup_sums, split_biases, taken_apart
from .sequence import SequenceCut, place_sequence
from .state import Flow
from .steps import Steps
from .typed import TypedGraph


@dataclass(frozen=True)
class Placement:
    """A graph, the steps between its values and which of them are one call; whether a backward may follow; what of it is cut
    over positions, or why nothing is though it should be."""

    typed: TypedGraph
    flow: Flow
    backward: Backward
    steps: Steps
    calls: tuple[Together, ...]
    gradients: bool = True
    sequence: SequenceCut | None = None
    left_whole: str = ""

    @property
    def contract(self) -> Contract:
        """What a program made from it is to be, whatever stands in it."""
        cut, cuts = self.sequence, self.flow.cuts
        if cut is None:
            return Contract(cuts, backward=self.gradients)
        return Contract(cuts, str(cut.source.target), cut.axis, cut.over, self.gradients)


def place(
    graph: torch.fx.Graph,
    typing: Typing,
    cuts: Cuts,
    price: Price,
    unread: frozenset[int] = frozenset(),
    *,
    keep: bool = False,
    backward: bool = True,
    sequence: int = 0,
) -> Placement:
    """Place a traced graph under a choice of cuts; the traced graph is not changed.

    Results whose numbers are in `unread` leave the unit as slices, to be gathered if they are read after all; with `keep`
    all others do too, as distributed tensors. What is handed on from unit to unit is cut over its positions on so many ranks
    as `sequence` says.
    Raises UnsoundPlanError if a cut axis must be whole, PlacementError if the mesh factors do not nest.
    """

    def placed(delayed: frozenset[str]) -> Placement:
        typed = TypedGraph.copy_of(graph, typing)
        _check_pins(cuts)
        split_biases(typed, cuts)
        write_out_norms(typed, cuts)
        write_out_running_statistics(typed, cuts)
        first = flow(typed, cuts, unread, keep=keep, delayed=delayed)
        if regroup_sums(typed, frozenset(node for node, over in first.partial.items() if over)):
            first = flow(typed, cuts, unread, keep=keep, delayed=delayed)
        final = flow(typed, cuts, unread, keep=keep, early=taken_apart(typed, first), delayed=delayed)
        conjugates = place_backward(typed, final, price) if backward else Backward()
        steps = steps_between(typed, final, conjugates)
        _check_written(final, steps)
        return Placement(typed, final, conjugates, steps, calls(typed, final, steps, price), backward)

    Mesh(Contract(cuts))
    best = _cheapest(placed, lambda found: seconds_of(found.typed, found.flow, found.calls, price))
    if not sequence:
        return best
    found = place_sequence(best.typed, best.flow, best.backward, sequence)
    if isinstance(found, str):
        return replace(best, left_whole=found)
    steps = steps_between(best.typed, best.flow, best.backward, found)
    return replace(best, sequence=found, steps=steps, calls=calls(best.typed, best.flow, steps, price))


def _check_pins(cuts: Cuts) -> None:
    """No cut axis is pinned. Raises UnsoundPlanError naming the operator that needs it whole."""
    for axis in cuts:
        if axis.pins:
            raise UnsoundPlanError(f"an axis of {axis.size} is cut but must be whole at {axis.pins[0]}")


def _check_written(flow: Flow, steps: Steps) -> None:
    """A rank's part of what is written is read as it is, since what is sent is of one moment. Raises UnsoundPlanError."""
    for step in steps:
        if step.root in flow.written and flow.held[step.root]:
            raise UnsoundPlanError(
                f"{step.root.name} is in memory that is written by parts, and is read as more than that"
            )


# With more products than this, only all of them or none wait: every trial is a placement of its own.
_MOST_PRODUCTS = 6


def _cheapest(placed: Callable[[frozenset[str]], Placement], seconds: Callable[[Placement], float]) -> Placement:
    """The placement in which none of the products waits for its sum, all or one do, or what changing one of them at a time
    then leads to."""
    best = placed(frozenset())
    known = frozenset(best.flow.products)
    cost = seconds(best) if known else 0.0
    trials = [known, *_single(known)] if known else []
    while trials:
        trial = trials.pop(0)
        placement = placed(trial)
        known |= placement.flow.products
        if (found := seconds(placement)) < cost:
            best, cost = placement, found
            trials = [trial ^ change for change in _single(known)] or [known] * (known != trial)
    return best


def _single(products: frozenset[str]) -> list[frozenset[str]]:
    few = 1 < len(products) <= _MOST_PRODUCTS
    return [frozenset([name]) for name in sorted(products)] if few else []
