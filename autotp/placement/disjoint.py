"""No value is cut twice over the same ranks."""

from __future__ import annotations

import functools
import operator
from collections import Counter

import torch

from ..axes.layout import Factor, Layout, Leaf, ProductLayout, SumLayout, layout_of
from ..errors import UnsoundPlanError
from .state import Flow
from .typed import TypedGraph


def check_disjoint(typed: TypedGraph, flow: Flow, node: torch.fx.Node) -> None:
    """A mesh factor cuts a value once: with two axes cut over it, the ranks would hold the diagonal blocks only.

    Raises UnsoundPlanError.
    """
    if not flow.held[node] and node not in flow.routed:
        return
    held, outputs = {axis: flow.cuts[axis] for axis in flow.held[node]}, typed.facts[node].outputs
    state = node, flow.held[node], flow.partial[node], flow.routed_over(flow.routed.get(node))
    if typed.disjoint.get(state) is outputs:  # found before, for other values behind it
        return
    for dims in outputs:
        layouts = ProductLayout(tuple(layout_of(term, held) for term in dims))
        used = [*_factors(layouts), *flow.partial[node], *flow.routed_over(flow.routed.get(node))]
        if len(used) != len(set(used)):
            raise UnsoundPlanError(f"{node.name} ({node.target}) would be cut twice over the same ranks")
    typed.disjoint[state] = outputs


def _factors(layout: Layout) -> list[Factor]:
    """The mesh factors that cut a dimension, each as often as one element is cut by it."""
    if isinstance(layout, Leaf):
        return list(layout.cut.over) if layout.cut else []
    parts = [_factors(part) for part in layout.parts]
    if isinstance(layout, SumLayout):
        return list(functools.reduce(operator.or_, map(Counter, parts)).elements())
    return [factor for part in parts for factor in part]
