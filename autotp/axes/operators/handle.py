"""What is read from a Python object that is called for real: its tensors hold a rank's part of their middle dims."""

from __future__ import annotations

from ..call import Call
from ..facts import Fact


def attribute(call: Call) -> Fact:
    """A tensor (batch, heads.., length, width) that an object holds: each rank's object holds its heads only."""
    dims = call.fresh(call.shape(0))
    middle = dims[1:-2]
    call.pin([term for term in dims if term not in middle], "the object holds all of it")
    return call.fact(dims, creates=middle)


RULES = {"opaque.__getattribute__": attribute}
