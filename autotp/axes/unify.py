"""Unification of terms: both sides become their common refinement, so knowledge flows forwards and backwards alike."""

from __future__ import annotations

import math

from .term import ONE, Axis, Product, Sum, Term, axes_of, axis, bind, resolve


class CannotUnify(Exception):
    """The two terms have no common refinement that a term can express."""


def unify(left: Term, right: Term) -> None:
    """Make two terms of equal size equal by binding axes. Raises CannotUnify, leaving sound but partial bindings."""
    left, right = resolve(left), resolve(right)
    if left is right:
        return
    if left.size != right.size:
        raise CannotUnify(f"sizes {left.size} and {right.size} differ")
    if left.size == 1:
        return
    if isinstance(left, Axis):
        _bind(left, right)
    elif isinstance(right, Axis):
        _bind(right, left)
    elif isinstance(left, Product) and isinstance(right, Product):
        _unify_products(left, right)
    elif isinstance(left, Sum) and isinstance(right, Sum):
        _unify_sums(left, right)
    elif isinstance(left, Product) and isinstance(right, Sum):
        _distribute(left, right)
    elif isinstance(left, Sum) and isinstance(right, Product):
        _distribute(right, left)


def _bind(unknown: Axis, term: Term) -> None:
    if unknown is term:
        return
    parts = list(axes_of(term))
    if unknown in parts:
        raise CannotUnify("a term would contain itself")
    bind(unknown, term)
    for part in parts:
        part.pins.extend(unknown.pins)


def _unify_products(left: Product, right: Product) -> None:
    """Align from the minor side; the larger of two unequal factors is split by the smaller."""
    a, b = list(left.parts), list(right.parts)
    while a and b:
        x, y = resolve(a.pop()), resolve(b.pop())
        if x.size > y.size:
            a, b, x, y = b, a, y, x
        if x.size == y.size:
            unify(x, y)
            continue
        if x.size == 0 or y.size % x.size:
            raise CannotUnify(f"{x.size} does not divide {y.size}")
        major = axis(y.size // x.size)
        unify(y, Product((major, x)))
        b.append(major)
    if math.prod(part.size for part in a + b) != 1:
        raise CannotUnify("factors are left over")


# More splits than this come from two sums that are shifted against each other, whose refinement has no structure.
_MOST_SPLITS = 64


def _unify_sums(left: Sum, right: Sum) -> None:
    """Align from the start; the longer of two unequal segments is split at the shorter one's end."""
    a, b = list(left.parts), list(right.parts)
    splits = 0
    while a and b:
        x, y = resolve(a.pop(0)), resolve(b.pop(0))
        if isinstance(x, Sum) or isinstance(y, Sum):  # split since it was put here
            a[:0] = x.parts if isinstance(x, Sum) else [x]
            b[:0] = y.parts if isinstance(y, Sum) else [y]
            continue
        if x.size > y.size:
            a, b, x, y = b, a, y, x
        if x.size == y.size:
            unify(x, y)
            continue
        if (splits := splits + 1) > _MOST_SPLITS:
            raise CannotUnify("two sums are shifted against each other")
        rest = axis(y.size - x.size)
        unify(y, Sum((x, rest)))
        b.insert(0, rest)


def _distribute(product: Product, total: Sum) -> None:
    """(M · m) = [p + q + ..]: M is itself a sum, and every segment holds a part of M times the same minor m."""
    for cut in range(1, len(product.parts)):
        minor = Product(product.parts[cut:])
        if minor.size and all(part.size % minor.size == 0 for part in total.parts):
            majors = tuple(axis(part.size // minor.size) for part in total.parts)
            for part, major in zip(total.parts, majors, strict=True):
                unify(part, Product((major, minor)))
            unify(Product(product.parts[:cut]), Sum(majors))
            return
    raise CannotUnify("a product and a sum with no common minor factor")


__all__ = ["ONE", "CannotUnify", "unify"]
