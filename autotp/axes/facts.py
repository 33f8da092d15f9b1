"""What inference records about each node, beside the terms of its dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch

from .annotation import annotation
from .term import Dims, Term

# What an operator's derivative reads: operands, as linearity says, or its own result; or there is none, and the result
# does not depend on the numbers of the operands, or pretends so.
Gradient: TypeAlias = Literal["operands", "result", "none"]
# How arguments that speak of sizes become those of a rank's slice; `rewrite/localise.py` has one function for each.
Local: TypeAlias = Literal["", "sizes", "unflatten", "split", "slice", "mean", "squeeze", "repeat", "repeats", "count"]


@dataclass(frozen=True)
class Pick:
    """Every row of a result is made with one of the parts of a table, and data say which: a row's expert.

    Attributes:
        rows: the term of the rows, in dim `dim` of the result. choice: the term of the parts.
        by: the value that says which, `ends` how: where the rows of every part end, or each row's part by its number.
    """

    rows: Term
    dim: int
    choice: Term
    by: torch.fx.Node
    ends: bool


@dataclass(frozen=True)
class Fact:
    """One node: the dims of its result(s), and how the operator treats its operands.

    Attributes:
        outputs: one entry for a tensor result, several for a list result.
        operands: the tensor operands in schema order; positions in it are what `linear` and `zeros` speak of.
        contracts: terms that are summed over.
        linear: groups of operands; the operator is linear in each group jointly, the other operands held fixed.
        zeros: groups of operands; the result is zero wherever all operands of one group are. It decides whether
            padding (which is zero) may be summed over later. zero_results: of how many of the first results that is so
            (all, unless given).
        nonzero: operands that must not be zero for the result and its derivatives to be finite (a divisor, the argument
            of a logarithm), so that their padding cannot stay zero.
        creates: terms that come into being here, from values equal along them (`expand`, `zeros`).
        attends: whether this is an attention core. looks_up: whether it looks rows up in a table.
        brought: the dim that a weight brings in, counted from the last as -1, where the operator has one.
        collects: whether it is the marker of a value that is gathered where it is made.
        pick: how the rows of the result pick the parts of a table.
        counts: the term of which an argument says how many there are (groups of channels).
        passing: terms of which an opaque object keeps the last few only, of what it is given.
        takes: along which dim of the operand the result is at which positions, where these are known.
        local, argument, gradient, view: what holds for every call of the operator (see `record.Operator`).
    """

    outputs: tuple[Dims, ...]
    operands: tuple[torch.fx.Node, ...] = ()
    contracts: tuple[Term, ...] = ()
    linear: tuple[frozenset[int], ...] = ()
    zeros: tuple[frozenset[int], ...] = ()
    zero_results: int | None = None
    nonzero: frozenset[int] = frozenset()
    creates: tuple[Term, ...] = ()
    attends: bool = False
    looks_up: bool = False
    brought: int = -1
    collects: bool = False
    pick: Pick | None = None
    counts: Term | None = None
    passing: tuple[Term, ...] = ()
    takes: tuple[int, range] | None = None
    local: Local = ""
    argument: str = ""
    gradient: Gradient = "operands"
    view: bool = False

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


def parameter_of(facts: Mapping[torch.fx.Node, Fact], node: torch.fx.Node) -> torch.fx.Node | None:
    """The parameter that a value is, or is made of by moving, picking, converting or scaling its elements alone; a number that
    scales them all may be made of what it likes."""
    while node in facts and not annotation(node).parameter:
        fact = facts[node]
        if fact.contracts or not fact.linear:
            return None
        values = [operand.meta["val"] for operand in fact.operands]
        places = [i for i, value in enumerate(values) if _has_gradient(value) and not _is_number(value)]
        if len(places) != 1 or not any(places[0] in group for group in fact.linear):
            return None
        node = fact.operands[places[0]]
    return node if annotation(node).parameter else None


def _is_number(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.dim()


def _has_gradient(value: object) -> bool:
    """Returns if a value is of numbers that have a gradient."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in values)
