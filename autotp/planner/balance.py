"""What routing costs: the time that ranks wait for the busiest, where each computes the rows that pick what it holds.

Rows pick their parts by data. Even if every part is picked alike, some rank gets more rows than others: of a mean of m rows on
each of n ranks about m + sqrt(2 m ln n) on the busiest. Operators whose rows are in no groups compute all rows on every rank.
"""

from __future__ import annotations

import math

import torch

from ..axes.layout import parts_of
from ..placement.place import Placement
from .weigh import Weigher
from .work import Counter

# A backward computes two products for each of a forward.
STEP = 3


def waiting(placement: Placement, weigher: Weigher, passes: int = STEP) -> float:
    """Seconds of one step, or of so many passes, that the busiest rank computes beyond an even share of the rows."""
    flow, counter = placement.flow, Counter(placement, weigher)
    routed = {node: parts_of(flow.cuts[own.routing.choice].over) for node, own in flow.routed.items()}
    flops = sum(_beyond(node, ranks, counter, weigher) for node, ranks in routed.items() if ranks > 1)
    return passes * flops / (weigher.machine.tflops_bf16 * 1e12)


def _beyond(node: torch.fx.Node, ranks: int, counter: Counter, weigher: Weigher) -> float:
    """Operations of the busiest rank beyond those of an even share."""
    flops = weigher.sizing.number(counter.flops(node))
    if counter.facts[node].pick is None:
        return flops * (1 - 1 / ranks)
    rows = weigher.sizing.number(counter.size(node, counter.flow.routed[node].dim))
    return flops * math.sqrt(2 * math.log(ranks) * ranks / rows) if rows else 0.0
