"""Sums of gradients for some positions of a parameter only: its parts are cut over different mesh factors."""

from __future__ import annotations

import functools

from ..axes.layout import Cuts, Factor, Layout, factors_of, is_whole, layout_of, leaves, local_factors
from .backward import PartSum
from .typed import TypedGraph, is_parameter


def part_sums(typed: TypedGraph, cuts: Cuts) -> tuple[PartSum, ...]:
    """Parameters whose parts vary over different mesh factors, as the q, k and v rows of a fused projection may."""
    return tuple(
        PartSum(node, over, dim, where)
        for node, fact in typed.facts.items()
        for dim, term in enumerate(fact.dims if is_parameter(node) else ())
        for over, where in _missing(layout_of(term, cuts))
    )


@functools.lru_cache(1 << 10)
def _missing(layout: Layout) -> tuple[tuple[frozenset[Factor], tuple[int, ...]], ...]:
    """The factors that other parts of a dim are cut over, for each part that is not, and the positions of that part."""
    everything = factors_of(layout)
    if is_whole(layout) or all(leaf.cut and set(leaf.cut.over) == everything for leaf in leaves(layout)):
        return ()
    missing: dict[frozenset[Factor], list[int]] = {}
    for position, over in enumerate(local_factors(layout)):
        missing.setdefault(everything - over, []).append(position)
    return tuple((over, tuple(where)) for over, where in missing.items() if over)
