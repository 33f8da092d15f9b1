"""Pass: operators whose rows pick parts of a table work on the parts that a rank has.

Legal because the rows that pick others are of no use to those who read the result, and are zero where they are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..axes.call import is_tensor, named_arguments
from ..axes.layout import Leaf
from ..placement.place import Placement
from ..runtime.layers import routing


def pick_local_parts(placement: Placement, ranks: torch.fx.Node) -> None:
    """Let every operator that picks from a cut table read what its rank holds of it."""
    flow, facts = placement.flow, placement.typed.facts
    for node, fact in facts.items():
        routed = flow.routed.get(node)
        if fact.pick is None or routed is None:
            continue
        choice = routed.routing.choice
        parts = Leaf(choice.size, flow.cuts[choice])
        if node.target is torch.ops.aten.index.Tensor:
            node.target, node.args = _lookup(parts), (node.args[0], node.args[1][0], ranks)  # type: ignore[index]
        else:
            values = [value for value in named_arguments(node).values() if is_tensor(value)]
            node.target, node.args, node.kwargs = _product(node.target, parts), (*values, ranks), {}


def _lookup(parts: Leaf) -> Callable[..., torch.Tensor]:
    def parts_of_rows(table: torch.Tensor, numbers: torch.Tensor, ranks: Any) -> torch.Tensor:
        return routing.parts_of_rows(table, numbers, ranks, parts)

    return parts_of_rows


def _product(target: Any, parts: Leaf) -> Callable[..., torch.Tensor]:
    def own_groups(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, ranks: Any) -> torch.Tensor:
        return routing.own_groups(target, rows, matrices, ends, ranks, parts)

    return own_groups
