"""What routing costs: the time that ranks wait for the busiest, where each computes the rows that pick what it holds."""

from __future__ import annotations

from ..placement.place import Placement
from .counter import Counter
from .weigh import Weigher

# A backward computes two products for each of a forward.
STEP = 3


def waiting(placement: Placement, weigher: Weigher) -> float:
    """Seconds of one step that the busiest rank computes beyond an even share of the rows."""
    beyond = weigher.sizing.number(Counter(placement, weigher).beyond())
    return STEP * beyond / (weigher.machine.tflops_bf16 * 1e12)
