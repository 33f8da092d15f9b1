"""The numbers of a node from times that were measured on it.

A collective takes latency + steps · hop + sent / link (`cost.py`). All-gathers and all-reduces of several sizes differ in their
steps and in the bytes that they send, so their times say what the three numbers are. Those are taken that are not below zero
and have the smallest sum of squared relative errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from ..errors import UsageError
from .cost import Hardware

_ROUNDS = 10
_GUESSES_US = (0.0, 1.0, 10.0, 100.0, 1000.0)  # of a hop: the first guess decides which algorithms are looked at
MSG_NO_FIT = (
    "the times of collectives on this machine do not grow with their size; measure again when nothing else runs here"
)


@dataclass(frozen=True)
class Timing:
    """Seconds that one collective took on a value of `size` bytes."""

    kind: str
    size: float
    seconds: float


def fitted(node: Hardware, timings: Sequence[Timing], ranks: int) -> Hardware:
    """A node with the latency, the time of a hop and the rate of a link that the times of collectives say.

    Which algorithm a collective took follows from the numbers that are looked for: it is guessed, and guessed again with what
    was found, until nothing changes. Raises UsageError where larger values took no longer.
    """
    found = [_settled(replace(node, latency_us=0.0, hop_us=hop, link_gbps=1.0), timings, ranks) for hop in _GUESSES_US]
    return min(found, key=lambda each: _error(each, timings, ranks))


def _settled(node: Hardware, timings: Sequence[Timing], ranks: int) -> Hardware:
    for _ in range(_ROUNDS):
        before, node = node, _solved(node, timings, ranks)
        if node == before:
            break
    return node


def _error(node: Hardware, timings: Sequence[Timing], ranks: int) -> float:
    return math.fsum((node.seconds(each.kind, each.size, ranks) / each.seconds - 1) ** 2 for each in timings)


def _solved(node: Hardware, timings: Sequence[Timing], ranks: int) -> Hardware:
    rows = numpy.array([[1.0, *node.way(timing.kind, timing.size, ranks)] for timing in timings])
    seconds = numpy.array([timing.seconds for timing in timings])
    latency, hop, slope = _least_squares(rows / seconds[:, None])
    if slope <= 0:
        raise UsageError(MSG_NO_FIT)
    return replace(node, latency_us=latency * 1e6, hop_us=hop * 1e6, link_gbps=1 / slope / 1e9)


def _least_squares(rows: numpy.ndarray) -> numpy.ndarray:
    """The numbers, none below zero, with which the rows come nearest to ones. Every choice of which are zero is tried."""
    best, least = numpy.zeros(rows.shape[1]), numpy.inf
    for count in range(1, rows.shape[1] + 1):
        for kept in itertools.combinations(range(rows.shape[1]), count):
            scale = numpy.abs(rows[:, kept]).max(axis=0)
            solution = numpy.linalg.lstsq(rows[:, kept] / scale, numpy.ones(len(rows)), rcond=None)[0] / scale
            error = float(((rows[:, kept] @ solution - 1) ** 2).sum())
            if (solution >= 0).all() and error < least:
                best, least = numpy.zeros(rows.shape[1]), error
                best[list(kept)] = solution
    return best
