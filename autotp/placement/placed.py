"""What a node of a placed graph and of a program is, beside its value: one frozen record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from ..axes.facts import Fact
from .transition import CutDim, Joined, Transition

_KEY = "placed"


@dataclass(frozen=True)
class Placed:
    """What a node is.

    Attributes:
        origin: the placed node that it was made from, by name.
        fact: what inference says of the operator; None for inputs, for nodes between values and for what was made for a rank.
        transition: what a node between values does to its value; None for every other.
        joined: what one call does for several such nodes, which hand on its results; None for every other.
        together: of a node between values, the others that are sent in the same call.
        marks: of what collects a value, the marker that it takes the place of.
        cuts: of what puts values into an object, or reads some there, how each is cut.
        written: of what reads values there, whether the unit writes into one of them.
        made: why there is an operator that the model does not have. stands_for: the operator whose place it takes.
    """

    origin: str = ""
    fact: Fact | None = None
    transition: Transition | None = None
    joined: Joined | None = None
    together: tuple[torch.fx.Node, ...] = ()
    marks: str = ""
    cuts: tuple[tuple[CutDim, ...], ...] = ()
    written: bool = False
    made: str = ""
    stands_for: str = ""

    @property
    def collective(self) -> Transition | Joined | None:
        """What placement has put there: for one value, or for several."""
        return self.transition or self.joined


_NOTHING = Placed()


def placed_as(node: torch.fx.Node) -> Placed:
    """What a node is; the copy of a node is the same."""
    return cast(Placed, node.meta.get(_KEY, _NOTHING))


def transition_of(node: torch.fx.Node) -> Transition:
    """What a node between values does."""
    transition = placed_as(node).transition
    assert transition is not None, f"{node} is no node between values"
    return transition


def fact_of(node: torch.fx.Node) -> Fact:
    """What inference says of a node that it has seen."""
    fact = placed_as(node).fact
    assert fact is not None, f"inference has not seen {node}"
    return fact


def say(node: torch.fx.Node, **changes: Any) -> None:
    """Say more of what a node is; the copies that were made of it before keep what was said."""
    node.meta[_KEY] = replace(placed_as(node), **changes)
