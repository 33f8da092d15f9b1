"""What inference records about each node, beside the terms of its dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from .term import Dims, Term


@dataclass(frozen=True)
class Fact:
    """One node: the dims of its result(s), and how the operator treats its operands.

    `outputs` has one entry for a tensor result, several for a list result. `contracts` are the terms summed over.
    `linear` lists groups of operands (positions in `operands`): the operator is linear in each group jointly, the other
    operands held fixed. `zeros` lists groups of operands too: the result is zero wherever all operands of one group are,
    which decides whether padding (which is zero) may be summed over later. `creates` are terms that come into being here from values equal along them (`expand`, `zeros`).
    """

    outputs: tuple[Dims, ...]
    operands: tuple[torch.fx.Node, ...] = ()
    contracts: tuple[Term, ...] = ()
    linear: tuple[frozenset[int], ...] = ()
    zeros: tuple[frozenset[int], ...] = ()
    creates: tuple[Term, ...] = ()
    attends: bool = False
    looks_up: bool = False
    collects: bool = False

    @property
    def dims(self) -> Dims:
        """The dims of a single tensor result."""
        (dims,) = self.outputs
        return dims


@dataclass(frozen=True)
class Typing:
    """The result of inference over one graph."""

    facts: Mapping[torch.fx.Node, Fact]
    unruled: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, node: object) -> bool:
        return node in self.facts

    def dims(self, node: torch.fx.Node) -> Dims:
        """The dims of a node with one tensor result."""
        return self.facts[node].dims
