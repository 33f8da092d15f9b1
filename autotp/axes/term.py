"""Terms: the type of a tensor dimension.

A dimension is an *axis* (an indivisible factor), a *product* of terms (major to minor, what `view` splits and merges)
or a *sum* of terms (what `cat`, `split` and `slice` join and cut). Axes are the unknowns of unification: an axis may be
bound to a finer term, and everything that mentioned it is refined with it. `resolve` reads a term through its bindings.

Sizes are integers. A symbolic size is represented by its value at large primes (see `axes.sizes`), so that equality and
divisibility of sizes are equality and divisibility of the expressions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

_counter = itertools.count()


@dataclass(frozen=True)
class Pin:
    """Why an axis must stay whole: the node, its operator, and the reason in words."""

    node: str
    operator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node} ({self.operator}): {self.reason}"


class Axis:
    """An indivisible factor of a dimension, until unification finds it is made of finer ones."""

    __slots__ = ("bound", "id", "pins", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.id = next(_counter)
        self.bound: Term | None = None
        self.pins: list[Pin] = []

    def __repr__(self) -> str:
        return f"a{self.id}:{self.size}" if self.bound is None else repr(resolve(self))


@dataclass(frozen=True, eq=False)
class Product:
    """Factors from major to minor. The empty product is the dimension of size one."""

    parts: tuple[Term, ...]

    @property
    def size(self) -> int:
        return math.prod(part.size for part in self.parts)

    def __repr__(self) -> str:
        return "(" + " · ".join(map(repr, self.parts)) + ")"


@dataclass(frozen=True, eq=False)
class Sum:
    """Segments one after the other."""

    parts: tuple[Term, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def __repr__(self) -> str:
        return "[" + " + ".join(map(repr, self.parts)) + "]"


Term: TypeAlias = Axis | Product | Sum
Dims: TypeAlias = tuple[Term, ...]

ONE = Product(())


def axis(size: int) -> Term:
    """A fresh unknown of the given size; size one needs no unknown."""
    return ONE if size == 1 else Axis(size)


class _Bindings:
    """What stands for all axes that are bound: while it is the same object, a term's normal form is what it was."""

    now = object()


def bind(unknown: Axis, term: Term) -> None:
    """Let an axis be a finer term, wherever it is mentioned."""
    unknown.bound = term
    _Bindings.now = object()  # and no number: of two threads that count one could be late


def resolve(term: Term) -> Term:
    """The term read through all bindings, in normal form: nested products and nested sums are flat."""
    while isinstance(term, Axis):
        if term.bound is None:
            return term
        term = term.bound
    now, (then, known) = _Bindings.now, vars(term).get(_NORMAL, (None, ONE))
    if then is now:
        return known
    normal = _normal(term)
    vars(term)[_NORMAL] = now, normal
    if not isinstance(normal, Axis):
        vars(normal)[_NORMAL] = now, normal
    return normal


_NORMAL = "normal"  # when a term's normal form was found, and that; no field, since it says nothing new of the term


def _normal(term: Product | Sum) -> Term:
    kind = type(term)
    flat: list[Term] = []
    for part in map(resolve, term.parts):
        if isinstance(part, kind):
            flat.extend(part.parts)
        elif not (kind is Product and part.size == 1):
            flat.append(part)
    return flat[0] if len(flat) == 1 else kind(tuple(flat))


def axes_of(term: Term) -> Iterator[Axis]:
    """The unbound axes of a term, major to minor."""
    waiting = [resolve(term)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Axis):
            yield part
        else:
            waiting += reversed(part.parts)  # in normal form, as the whole is


def axes_of_dims(dims: Iterable[Term]) -> set[Axis]:
    """All unbound axes of the dims of a value."""
    return {found for dim in dims for found in axes_of(dim)}


def pin(term: Term, why: Pin) -> None:
    """Require that every axis of the term stays whole."""
    for found in axes_of(term):
        found.pins.append(why)
