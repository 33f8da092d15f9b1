"""Values made from nothing: their dims are unknowns of their own."""

from __future__ import annotations

from ..annotation import READ, SETS
from ..call import Call
from ..facts import Fact
from ..record import Operator, Rule


def constant(call: Call) -> Fact:
    """zeros, ones, full, empty: the same along every dim, so any rank can make its own part."""
    dims = call.fresh(call.shape())
    return Fact((dims,), (), creates=dims)


def enumerated(call: Call) -> Fact:
    """arange, eye, ...: made whole, and sliced where it meets something cut."""
    return Fact((call.fresh(call.shape()),), ())


def read(call: Call) -> Fact:
    """A value read from an opaque object: it is there as this rank's slice, wherever it meets what is cut that way."""
    outputs = [call.fresh(call.shape(number)) for number in range(len(call.node.meta["val"]))]
    return call.fact(*outputs, creates=[term for dims in outputs for term in dims])


def kept(call: Call) -> Fact:
    """An attribute or an item of an opaque object is set: it keeps this rank's slices of any number of values."""
    return call.fact()


# Operators that make one value everywhere, of the shape their argument `size` gives.
_OF_SIZE = tuple(f"aten.{new}{fill}" for new in ("", "new_") for fill in ("zeros", "ones", "full", "empty"))

RULES: dict[str, Rule] = {
    READ: read,
    **dict.fromkeys(SETS, kept),
    **dict.fromkeys(_OF_SIZE, Operator(constant, local="sizes", argument="size")),
    "aten.scalar_tensor": constant,
    **dict.fromkeys(("aten.arange", "aten.eye", "aten.linspace"), enumerated),
}
