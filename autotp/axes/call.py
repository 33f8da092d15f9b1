"""One operator call as an operator rule sees it: its arguments by name, the dims of its operands, and equations."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .annotation import annotation
from .facts import Fact, Pick
from .routing import chosen_by
from .sizes import Sizes
from .term import ONE, Dims, Pin, Product, Term, axis, pin
from .unify import CannotUnify, unify


def operator_name(target: Any) -> str:
    """`aten.linear` for `torch.ops.aten.linear.default`; the function's name for a Python function."""
    if isinstance(target, torch._ops.OpOverload):
        return _name_of(target)
    return str(target.operator) if hasattr(target, "operator") else getattr(target, "__name__", str(target))


@functools.cache
def _name_of(target: torch._ops.OpOverload) -> str:
    return f"{target.namespace}.{target._schema.name.split('::')[1]}"


def named_arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Arguments of a call by their schema names, defaults filled in; by the names their target gives them, or by position
    (`"0"`), where there is no schema."""
    target = node.target
    if hasattr(target, "argument_names"):
        return {**getattr(target, "constants", {}), **dict(zip(target.argument_names, node.args, strict=True))}
    if not isinstance(target, torch._ops.OpOverload):
        return {str(i): value for i, value in enumerate(node.args)} | dict(node.kwargs)
    named: dict[str, Any] = {}
    for i, argument in enumerate(target._schema.arguments):
        if i < len(node.args) and not argument.kwarg_only:
            named[argument.name] = node.args[i]
        elif argument.name in node.kwargs:
            named[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            named[argument.name] = argument.default_value
    return named


def is_tensor(value: Any) -> bool:
    """Returns if an argument is a node that holds one tensor."""
    return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def may_be_view(node: torch.fx.Node) -> bool:
    """Returns if the result of an operator may be in the memory of an operand, into which it writes nothing itself."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema and schema.returns and schema.returns[0].alias_info and not schema.is_mutable)


def written_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors into which an operator writes, by its schema: its first operand mostly, or others, or those in `out=`."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    named = named_arguments(node)
    given = [
        named.get(each.name) for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write
    ]
    return [value for value in torch.utils._pytree.tree_leaves(given) if is_tensor(value)]


def writes_aside(node: torch.fx.Node) -> bool:
    """Returns if what an operator gives is not in the memory that it writes into: a norm that writes its running statistics."""
    schema = getattr(node.target, "_schema", None)
    return bool(annotation(node).writes) and schema is not None and all(r.alias_info is None for r in schema.returns)


class Call:
    """A node under inference. Rules read it, state equations and pins on it, and return a Fact made by `fact`."""

    def __init__(self, node: torch.fx.Node, known: dict[torch.fx.Node, Fact], sizes: Sizes) -> None:
        self.node = node
        # A method of an opaque object is known by the method's name.
        self.name = annotation(node).opaque or operator_name(node.target)
        self.sizes = sizes
        self.arguments = named_arguments(node)
        self._known = known
        self.operands: tuple[torch.fx.Node, ...] = tuple(
            value for value in torch.utils._pytree.tree_leaves(tuple(self.arguments.values())) if is_tensor(value)
        )

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        """An argument by its schema name."""
        return self.arguments.get(name, default)

    def dims(self, value: Any) -> Dims:
        """The dims of an operand."""
        return self._known[value].dims

    def fact_of(self, value: torch.fx.Node) -> Fact:
        """All that is known of an operand."""
        return self._known[value]

    def dim(self, index: int, rank: int) -> int:
        """A possibly negative dim index as a position."""
        return index % rank if rank else 0

    def dim_list(self, value: Any, rank: int) -> list[int]:
        """A `dim` argument (int, list or None for all) as positions."""
        if value is None or (isinstance(value, (list, tuple)) and not value):
            return list(range(rank))
        return [self.dim(d, rank) for d in (value if isinstance(value, (list, tuple)) else [value])]

    def shape(self, output: int | None = None) -> list[int]:
        """The size of every dim of the result, or of one result of several."""
        value = self.node.meta["val"]
        return [self.sizes(size) for size in (value if output is None else value[output]).shape]

    # -- stating ---------------------------------------------------------------------------------------------------

    def fresh(self, sizes: Iterable[int]) -> Dims:
        """New unknowns of the given sizes."""
        return tuple(axis(size) for size in sizes)

    def equal(self, left: Term, right: Term) -> None:
        """State that two terms are equal; where they cannot be, both must stay whole here."""
        try:
            unify(left, right)
        except CannotUnify as reason:
            self.pin([left, right], f"its dimensions cannot be matched ({reason})")

    def pin(self, terms: Iterable[Term], reason: str) -> None:
        """State that this operator needs the terms whole."""
        why = Pin(self.node.name, self.name, reason)
        for term in terms:
            pin(term, why)

    def broadcast(self, values: Sequence[Dims], rank: int | None = None) -> Dims:
        """State that dims are equal where they do not broadcast, aligned from the right; returns the joint dims."""
        rank = max(map(len, values), default=0) if rank is None else rank
        joint: list[Term] = [ONE] * rank
        for dims in values:
            offset = rank - len(dims)
            for i, term in enumerate(dims, start=offset):
                if term.size == 1:
                    continue
                if joint[i].size == 1:
                    joint[i] = term
                else:
                    self.equal(joint[i], term)
        return tuple(joint)

    def reshape(self, before: Dims, after: Dims) -> None:
        """State that two shapes hold the same elements in the same order."""
        if _size(before) != _size(after):
            self.pin([*before, *after], "the number of elements before and after differs")
            return
        for some, others in _aligned(before, after):
            self.equal(Product(some), Product(others))

    def pick(self, rows: Term, dim: int, choice: Term, by: torch.fx.Node, *, ends: bool) -> Pick:
        """State that rows pick parts (see `Pick`); what is picked by the same value is picked alike."""
        by, ends = chosen_by(by, ends, choice.size)
        for fact in self._known.values():
            if fact.pick is not None and (fact.pick.by, fact.pick.ends) == (by, ends):
                self.equal(choice, fact.pick.choice)
        return Pick(rows, dim, choice, by, ends)

    def fact(
        self,
        *outputs: Dims,
        contracts: Iterable[Term] = (),
        linear: Iterable[Iterable[int]] = (),
        zeros: Iterable[Iterable[int]] = (),
        nonzero: Iterable[int] = (),
        creates: Iterable[Term] = (),
        attends: bool = False,
        looks_up: bool = False,
        pick: Pick | None = None,
        counts: Term | None = None,
    ) -> Fact:
        """The record of this call."""
        return Fact(
            outputs=outputs,
            operands=self.operands,
            contracts=tuple(contracts),
            linear=tuple(frozenset(group) for group in linear),
            zeros=tuple(frozenset(group) for group in zeros),
            nonzero=frozenset(nonzero),
            creates=tuple(creates),
            attends=attends,
            looks_up=looks_up,
            pick=pick,
            counts=counts,
        )

    def layout_fact(self, *outputs: Dims, creates: Iterable[Term] = ()) -> Fact:
        """The record of an operator that only moves elements of its operands: linear in all of them jointly."""
        everything = [range(len(self.operands))]
        return self.fact(*outputs, linear=everything, zeros=everything, creates=creates)


def _aligned(before: Dims, after: Dims) -> Iterator[tuple[Dims, Dims]]:
    """The dims of two shapes of the same number of elements in the least groups that hold the same elements, from the last on."""
    if not _size(before):
        yield before, after
        return
    end, last = len(before), len(after)
    while end or last:
        start, first = end, last
        while (start, first) == (end, last) or _size(before[start:end]) != _size(after[first:last]):
            if not first or (start and _size(before[start:end]) <= _size(after[first:last])):
                start -= 1
            else:
                first -= 1
        yield before[start:end], after[first:last]
        end, last = start, first


def _size(dims: Dims) -> int:
    return math.prod(dim.size for dim in dims)
