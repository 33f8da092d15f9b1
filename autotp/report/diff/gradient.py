"""What a rank has of every gradient: read off the rewritten graph from its end to its beginning.

Where a node is a slice, or a sum over slices, every rank computes another part of the gradient of what it reads; the
parts add up to the gradient until a collective sums them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...axes.layout import Cuts, Factor
from ...axes.term import Axis
from ...placement.typed import factors_in


@dataclass(frozen=True)
class Held:
    """What a rank has of a value: the axes it is a slice along, the mesh factors it is a partial sum over, and the axes
    that it sums over."""

    axes: frozenset[Axis] = frozenset()
    partial: frozenset[Factor] = frozenset()
    summed: frozenset[Axis] = frozenset()

    @property
    def state(self) -> str:
        """`whole`, `slice` or `partial`."""
        return "partial" if self.partial else "slice" if self.axes else "whole"


def gradient_parts(
    graph: torch.fx.Graph, held: Mapping[torch.fx.Node, Held], cuts: Cuts
) -> dict[torch.fx.Node, frozenset[Factor]]:
    """For every value the mesh factors over whose ranks the gradients, as they arrive, are parts of a sum."""
    parts: dict[torch.fx.Node, frozenset[Factor]] = {}
    for node in reversed(list(graph.nodes)):
        if node in held and _is_whole_number(node):
            parts[node] = frozenset()
        elif node in held:
            arriving = (_through(user, held, parts, cuts) for user in node.users if user in held)
            parts[node] = frozenset[Factor]().union(*arriving) - factors_in(held[node].axes, cuts)
    return parts


def _is_whole_number(node: torch.fx.Node) -> bool:
    """Returns if no gradient comes back through a value: an index, a count."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def _through(
    user: torch.fx.Node,
    held: Mapping[torch.fx.Node, Held],
    parts: Mapping[torch.fx.Node, frozenset[Factor]],
    cuts: Cuts,
) -> frozenset[Factor]:
    """What comes back through one reader of a value."""
    inserted = user.meta.get("collective")
    if inserted is None:
        return parts[user] | factors_in(held[user].axes, cuts)
    over = frozenset(inserted.over)
    # Behind a gather every rank takes its slice of the gradient, of the sum where it arrives in parts.
    return parts[user] | over if inserted.kind in ("slice", "leave") else parts[user] - over
