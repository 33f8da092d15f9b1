"""Counting what a rank computes and keeps of one placed unit.

Operations: two for every multiplication of a contraction and of attention, whose cores count every pair of a query and a
key. Saved values: what the derivative of each operator needs, as its fact says. Where the operator is linear in an
operand, that operand's gradient needs the others; where it is not, it needs them all. A view is kept as what it views.
Parameters count as weights, and inputs that need no gradient (masks, rotary tables) are shared by all units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import sympy
import torch

from ..axes.annotation import annotation
from ..axes.call import may_be_view
from ..axes.facts import Fact, Typing
from ..axes.layout import layout_of, parts_of
from ..axes.term import Axis, axes_of, axes_of_dims
from ..capture.calls import call_opaque
from ..chains.match import readers
from ..placement.place import Placement
from ..placement.results import base_of
from ..placement.sizes import share_of
from .attended import attended, factors, is_product, unrepeated
from .combinations import elements_of
from .weigh import Weigher

_S, _KEYS = (sympy.Symbol(letter, positive=True, integer=True) for letter in "sk")


class Counter:
    """Counts the work of one placed unit."""

    def __init__(self, placement: Placement, weigher: Weigher) -> None:
        self.flow, self.weigher = placement.flow, weigher
        self.facts: Mapping[torch.fx.Node, Fact] = placement.typed.facts
        self.cut = placement.sequence
        self.nodes = [node for node in placement.typed.graph.nodes if node in self.facts]

    def saved(self) -> sympy.Expr:
        """Bytes kept for the backward."""
        read = ((value, self._on_positions(node, value)) for node in self.nodes for value in self._saved(node))
        saved = dict.fromkeys((base_of(value), on_positions) for value, on_positions in read)
        return sympy.Add(*(self._bytes(node) * self._part(on) for node, on in saved if self._counts(node)))

    def cached(self) -> sympy.Expr:
        """Bytes that opaque objects are given to keep."""
        kept = (pair for node in self.nodes for pair in self._kept_by(node))
        return sympy.Add(*(self._elements_kept(each, passing) * self._element_bytes(each) for each, passing in kept))

    def all_flops(self) -> sympy.Expr:
        """Operations of a forward, on average."""
        return sympy.Add(*map(self.flops, self.nodes))

    def beyond(self) -> sympy.Expr:
        """Operations of the busiest rank beyond an even share.

        Rows pick their parts by data. Even if every part is picked alike, some rank gets more rows than others: of a mean of m
        rows on each of n ranks about m + sqrt(2 m ln n) on the busiest. Operators whose rows are in no groups compute all rows
        on every rank.
        """
        routed = {node: parts_of(self.flow.cuts[own.routing.choice].over) for node, own in self.flow.routed.items()}
        return sympy.Add(*(self._beyond(node, ranks) for node, ranks in routed.items() if ranks > 1))

    def _beyond(self, node: torch.fx.Node, ranks: int) -> sympy.Expr:
        flops = self.flops(node)
        if self.facts[node].pick is None:
            return flops * (1 - sympy.Rational(1, ranks))
        rows = self._size(node.meta["val"].shape[self.flow.routed[node].dim])
        return flops * sympy.sqrt(2 * math.log(ranks) * ranks / rows)

    def read(self) -> int:
        """Elements of the weights on this rank that every call reads all of."""
        return sum(elements_of(self.facts[node].dims, self.flow.cuts) for node in self.weights())

    def weights(self) -> list[torch.fx.Node]:
        """The weights that every call reads all of: not the tables, of which it looks up some rows."""
        weights = (node for node in self.nodes if node.op == "get_attr" and annotation(node).parameter)
        return [node for node in weights if not self._is_table(node)]

    def _is_table(self, weight: torch.fx.Node) -> bool:
        found = list(readers(weight, Typing(self.facts, {})))
        return bool(found) and all(self.facts[reader].looks_up for reader in found)

    @cached_property
    def has_cache(self) -> bool:
        """Whether an opaque object is given something to keep."""
        return any(True for node in self.nodes for _ in self._kept_by(node))

    def reread(self) -> sympy.Expr:
        """Elements that writing one more token reads of what all before it left."""
        return sympy.Add(*map(self.reread_by, self.nodes))

    def reread_by(self, node: torch.fx.Node) -> sympy.Expr:
        """What of it one operator reads: of a cache all that it is given to keep; without one, an attention core the keys and
        values, as a cache would have them, before they are repeated for several heads."""
        if self.has_cache:
            read = [self._elements_kept(operand, passing) for operand, passing in self._kept_by(node)]
        else:
            read = [self._local(unrepeated(each, self.facts)) for each in attended(node, self.facts)]
        return sympy.Add(*read).xreplace({_S: _KEYS})

    def _on_positions(self, node: torch.fx.Node, value: torch.fx.Node) -> bool:
        """Returns if an operator reads, or gives, a rank's positions of a value: beside them others may read it whole."""
        if self.cut is None:
            return False
        version = value, bool(self.flow.use(node, value).reduce)
        return version in self.cut.again or (
            node in self.cut.held and self.cut.dim(self.facts[value].outputs[0]) is not None
        )

    def _part(self, on_positions: bool) -> sympy.Rational:
        return sympy.Rational(1, parts_of(self.cut.over) if self.cut is not None and on_positions else 1)

    def _local(self, node: torch.fx.Node) -> sympy.Expr:
        """Elements of a value on this rank; all results of an operator with several."""
        value, outputs = node.meta["val"], self.facts[node].outputs
        values = (value,) if isinstance(value, torch.Tensor) else value
        parts = (
            self.weigher.sizing.share(part, share_of(self.flow, node, dims))
            for part, dims in zip(values, outputs, strict=True)
            if isinstance(part, torch.Tensor)
        )
        return sympy.Add(*parts)

    def _bytes(self, node: torch.fx.Node) -> sympy.Expr:
        return self._local(node) * self._element_bytes(node)

    def _element_bytes(self, node: torch.fx.Node) -> int:
        value = node.meta["val"]
        first = value if isinstance(value, torch.Tensor) else next(v for v in value if isinstance(v, torch.Tensor))
        return first.element_size()

    def size(self, node: torch.fx.Node, dim: int) -> sympy.Expr:
        """One size of a value, whole."""
        return self._size(node.meta["val"].shape[dim])

    def flops(self, node: torch.fx.Node) -> sympy.Expr:
        """Operations of one operator on a rank, on average."""
        fact = self.facts[node]
        if fact.attends:
            query, key = fact.operands[:2]
            keys = self._size(key.meta["val"].shape[-2])
            keys = _KEYS if keys == _S else keys  # of a cache, where there is one
            return 2 * keys * (self._local(query) + self._local(node))
        if len(fact.operands) < 2 or fact.looks_up or fact.collects or annotation(node).opaque is not None:
            return sympy.Integer(0)
        summed = axes_of_dims(fact.contracts).difference(*map(axes_of_dims, fact.outputs))  # not what it norms
        if not summed and is_product(node, self.facts):  # of positions by positions, which are one axis
            return 2 * self._local(node) * self._last(fact) * self._rows(node)
        return 2 * self._local(node) * self._products(fact, summed) * self._rows(node) if summed else sympy.Integer(0)

    def _rows(self, node: torch.fx.Node) -> sympy.Rational:
        """How many of the rows a rank computes, if all parts are picked as often: its own, where it has them in groups."""
        routed = self.flow.routed.get(node)
        if routed is None or self.facts[node].pick is None:
            return sympy.Integer(1)
        return sympy.Rational(1, parts_of(self.flow.cuts[routed.routing.choice].over))

    def _products(self, fact: Fact, summed: set[Axis]) -> sympy.Expr:
        """How many products a rank adds up for every element of a result."""
        held = frozenset().union(*(self.flow.held[operand] for operand in fact.operands))
        cuts = {axis: self.flow.cuts[axis] for axis in held}
        for operand in fact.operands:
            sizes = [
                self._size(size) * sympy.Rational(layout_of(term, cuts).local_size, term.size)
                for size, term in zip(operand.meta["val"].shape, self.facts[operand].dims, strict=True)
                if set(axes_of(term)) and set(axes_of(term)) <= summed
            ]
            if sizes:
                return sympy.Mul(*sizes)
        return sympy.Integer(1)

    def _last(self, fact: Fact) -> sympy.Expr:
        """The size of what a product sums over, the last dim of its first factor that is of these axes."""
        operand, summed = factors(fact)[0], axes_of_dims(fact.contracts)
        dims = zip(operand.meta["val"].shape, self.facts[operand].dims, strict=True)
        sizes = [self._size(size) for size, term in dims if set(axes_of(term)) and set(axes_of(term)) <= summed]
        return sizes[-1] if sizes else sympy.Integer(1)

    def _size(self, size: int | torch.SymInt) -> sympy.Expr:
        return self.weigher.sizing.expression(size)

    def _kept_by(self, node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, set[Axis]]]:
        """What an opaque object is given to keep: the operands that come back as results, longer than before. With each the axes
        along which it passes by, and the object keeps the last few."""
        value = node.meta["val"]
        if node.target is call_opaque and isinstance(value, (list, tuple)):
            passing = axes_of_dims(self.facts[node].passing)
            yield from ((operand, passing) for operand in self.facts[node].operands[: len(value)])

    def _elements_kept(self, node: torch.fx.Node, passing: set[Axis]) -> sympy.Expr:
        """Elements of a value on this rank; one place is counted of the dims that pass by."""
        if not passing:
            return self._local(node)
        dims = self.facts[node].dims
        sizes = zip(node.meta["val"].shape, dims, strict=True)
        elements = sympy.Mul(*(self._size(size) for size, term in sizes if not set(axes_of(term)) & passing))
        return elements * sympy.Rational(share_of(self.flow, node, dims))

    def _counts(self, node: torch.fx.Node) -> bool:
        """Returns if a value that is kept is this unit's: no parameter, constant or input that all units share."""
        if node.op == "get_attr":
            return False
        return node.op != "placeholder" or node in self.flow.gradient

    def _saved(self, node: torch.fx.Node) -> Iterator[torch.fx.Node]:
        """The values that the derivative of one operator reads."""
        fact = self.facts[node]
        if node.op != "call_function" or node not in self.flow.gradient:
            return
        if may_be_view(node) or annotation(node).opaque is not None:
            return
        if fact.attends:
            yield from (*fact.operands, node)
        elif fact.gradient == "result":  # the operand need not be kept
            yield node
        else:
            for place, operand in enumerate(fact.operands):
                if operand in self.flow.gradient:
                    yield from _needed(place, fact)


def _needed(place: int, fact: Fact) -> Iterable[torch.fx.Node]:
    """The operands that the gradient of one operand reads: those it is not jointly linear with."""
    together = max((group for group in fact.linear if place in group), key=len, default=frozenset())
    return [operand for i, operand in enumerate(fact.operands) if i not in together]
