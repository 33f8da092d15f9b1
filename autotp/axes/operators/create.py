"""Values made from nothing: their dims are unknowns of their own."""

from __future__ import annotations

from ..call import Call
from ..facts import Fact


def constant(call: Call) -> Fact:
    """zeros, ones, full, empty: the same along every dim, so any rank can make its own part."""
    dims = call.fresh(call.shape())
    return Fact((dims,), (), creates=dims)


def enumerated(call: Call) -> Fact:
    """arange, eye, ...: made whole, and sliced where it meets something cut."""
    return Fact((call.fresh(call.shape()),), ())


RULES = {
    **dict.fromkeys(
        (
            "aten.zeros",
            "aten.ones",
            "aten.full",
            "aten.empty",
            "aten.new_zeros",
            "aten.new_ones",
            "aten.new_full",
            "aten.new_empty",
            "aten.scalar_tensor",
        ),
        constant,
    ),
    **dict.fromkeys(("aten.arange", "aten.eye", "aten.linspace"), enumerated),
}
