"""Signatures of Python functions, argument by argument: `x: b t (g r) p, A: (g r), B: b t g n -> b t (g r) p, b (g r) p n`.

Arguments are known by name, since a call may leave any of them out. Equal letters are one term, `(g r)` is a product
(major to minor), a dim of size one broadcasts. In an element-wise function all are `...`. Of the results a call gives the
first ones. Nothing is summed over: what a result has not is whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from ..errors import RuleError
from .annotation import READ, annotation
from .call import Call
from .facts import Fact
from .term import ONE, Dims, Product, Term, axis

# The letters of one dim, major to minor.
Part: TypeAlias = tuple[str, ...]

# The dims of an argument or result of an element-wise function.
ELEMENTWISE: tuple[Part, ...] = (("...",),)

# An argument, or an item of one that is a list.
_NAME = re.compile(r"[A-Za-z_]\w*(\[\w+\])*")
_PART = re.compile(r"\(([A-Za-z ]+)\)|([A-Za-z])|(\S)")


@dataclass(frozen=True)
class FunctionRule:
    """A parsed signature. `whole` are the letters that stay whole; the results (the first `zero_results`) are zero where all
    of `zeros` are, if the constants that `zeros_if` names are absent or among these; `writes` are arguments in whose
    memory the function leaves something, `unused` ones that it takes and does not look at. `owner` is the package that defines
    the function."""

    arguments: Mapping[str, tuple[Part, ...]]
    results: tuple[tuple[Part, ...], ...]
    whole: frozenset[str]
    zeros: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    zeros_if: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    zero_results: int | None = None
    unused: frozenset[str] = frozenset()
    owner: str = ""

    def __call__(self, call: Call) -> Fact:
        """State the equations of one call."""
        given = {
            name: value
            for name, value in call.arguments.items()
            if value in call.operands and name.partition("[")[0] not in self.unused
        }
        if not self._describes(call, given):
            return self._unknown(call)
        if self.results == (ELEMENTWISE,):
            dims = call.broadcast([call.dims(value) for value in given.values()])
            return call.fact(dims, zeros=self._zeros(call, given))
        terms = self._terms(call, given)
        call.pin([terms[letter] for letter in sorted(self.whole & terms.keys())], "the function needs it whole")
        for name in sorted(self.writes & given.keys()):
            if not _is_kept(call, given[name]):
                call.pin(call.dims(given[name]), "the function writes into it")
        fact = call.fact(*self._outputs(call, terms), zeros=self._zeros(call, given))
        return replace(fact, zero_results=self.zero_results)

    def _zeros(self, call: Call, given: Mapping[str, torch.fx.Node]) -> list[list[int]]:
        """The positions of the operands where the results are zero if these are, as the one group there is, or none."""
        group = [call.operands.index(given[name]) for name in sorted(self.zeros & given.keys())]
        preserved = all(call.get(name) in (None, *values) for name, values in self.zeros_if.items())
        return [group] if group and preserved else []

    def _describes(self, call: Call, given: Mapping[str, torch.fx.Node]) -> bool:
        """Returns if every tensor of a call is an argument of the rule, with as many dims, and every result one of its."""
        known = given.keys() <= self.arguments.keys() and len(call.node.meta["val"]) <= len(self.results)
        return known and all(
            self.arguments[name] == ELEMENTWISE or len(call.dims(value)) == len(self.arguments[name])
            for name, value in given.items()
        )

    def _unknown(self, call: Call) -> Fact:
        outputs = [call.fresh(call.shape(number)) for number in range(len(call.node.meta["val"]))]
        for dims in (*map(call.dims, call.operands), *outputs):
            call.pin(dims, "it is called in a way that its rule does not describe")
        return call.fact(*outputs)

    def _terms(self, call: Call, given: Mapping[str, torch.fx.Node]) -> dict[str, Term]:
        """One term a letter: those that are dims first, then the factors of products that are left."""
        terms: dict[str, Term] = {}
        pairs = [
            pair for name, value in given.items() for pair in zip(self.arguments[name], call.dims(value), strict=True)
        ]
        for part, dim in sorted(pairs, key=lambda pair: len(pair[0])):
            if dim.size == 1 and len(part) == 1 and terms.get(part[0], ONE).size != 1:
                continue  # it broadcasts
            rest = dim.size // math.prod(terms[letter].size for letter in part if letter in terms)
            for letter in reversed(part):
                if letter not in terms:
                    terms[letter], rest = axis(rest), 1
            own = Product(tuple(terms[letter] for letter in part))
            if own.size == dim.size:
                call.equal(own, dim)
            elif own.size == 1 and len(part) == 1:
                terms[part[0]] = dim
            else:
                call.pin([own, dim], "its sizes do not fit the function's rule")
        return terms

    def _outputs(self, call: Call, terms: dict[str, Term]) -> Iterator[Dims]:
        for number, parts in enumerate(self.results[: len(call.node.meta["val"])]):
            shape = call.shape(number)
            for part, size in zip(parts, shape, strict=True):
                if len(part) == 1:
                    terms.setdefault(part[0], axis(size))
            yield tuple(Product(tuple(terms[letter] for letter in part)) for part in parts)


def _is_kept(call: Call, node: torch.fx.Node) -> bool:
    """Returns if a value was read from an opaque object, or is a view of such a one: a rank reads its own memory there."""
    while call.fact_of(node).view:
        node = node.all_input_nodes[0]
    source = node.args[0] if node.args else None
    return isinstance(source, torch.fx.Node) and annotation(source).opaque == READ


def parse_function(
    text: str,
    whole: str = "",
    zeros: str = "",
    writes: str = "",
    unused: str = "",
    zeros_if: Mapping[str, Sequence[Any]] | None = None,
    zero_results: int | None = None,
) -> FunctionRule:
    """Read a signature. Raises RuleError with the part it cannot read or the name it does not know."""
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise RuleError(f"the signature {text!r} needs exactly one '->', as in 'x: b t c, A: c -> b t c'")
    arguments = {}
    for group in left.split(","):
        name, colon, parts = group.partition(":")
        if not colon or not _NAME.fullmatch(name.strip()):
            raise RuleError(f"cannot read {group.strip()!r} in the signature {text!r}; write 'name: b t c'")
        arguments[name.strip()] = _parts(parts, text)
    results = tuple(_parts(group, text) for group in right.split(","))
    letters = {letter for parts in arguments.values() for part in parts for letter in part}
    kept = {letter for parts in results for part in parts for letter in part}
    for name, words, known in (("whole", whole, letters), ("zeros", zeros, arguments), ("writes", writes, arguments)):
        for word in words.split():
            if word not in known:
                raise RuleError(f"{name!r} names {word!r}, which the signature {text!r} does not have")
    if summed := sorted(letters - kept - set(whole.split())):
        raise RuleError(f"the signature {text!r} has no {summed[0]!r} on its right; a function needs it 'whole'")
    return FunctionRule(
        arguments,
        results,
        whole=frozenset(whole.split()),
        zeros=frozenset(zeros.split()),
        writes=frozenset(writes.split()),
        zeros_if=zeros_if or {},
        zero_results=zero_results,
        unused=frozenset(unused.split()),
    )


def _parts(text: str, signature: str) -> tuple[Part, ...]:
    if text.strip() == "...":
        return ELEMENTWISE
    found = _PART.findall(text)
    for _, _, strange in found:
        if strange:
            raise RuleError(f"cannot read {text.strip()!r} in the signature {signature!r}; write letters and '(g r)'")
    return tuple(tuple(product.split()) if product else (letter,) for product, letter, _ in found)
