"""Pass: an operator that draws random numbers for a slice draws other ones than the ranks with other slices.

Legal because the numbers are independent in the dense model too. What is the same on several ranks gets the same numbers
there: they differ only along the mesh factors that cut the result, all of them where a rank has its positions only.
"""

from __future__ import annotations

from typing import Any

import torch

from ..axes.layout import Factors, ordered
from ..placement.place import Placement
from ..placement.typed import factors_in
from ..runtime.devices.randomness import apart


def draw_apart(placement: Placement, ranks: torch.fx.Node) -> None:
    """Let every random operator with a cut result draw by the rank's position."""
    flow = placement.flow
    for node in [node for node in placement.typed.graph.nodes if node in placement.typed.facts and _draws(node)]:
        cut = placement.sequence
        on_positions = cut is not None and node in cut.held
        over = cut.over if on_positions and cut else ordered(factors_in(flow.held[node], flow.cuts))
        if over:
            node.target, node.args = _drawing(node.target, over), (ranks, *node.args)


def _draws(node: torch.fx.Node) -> bool:
    """Returns if an operator takes random numbers: dropout at a rate of zero does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    rates = [given.get(name, 0.0) for name in ("p", "dropout_p") if name in names]
    return not rates or any(rate != 0 for rate in rates)


def _drawing(target: Any, over: Factors) -> Any:
    def draw(ranks: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # a compiled graph draws alike for all slices
            return target(*args, **kwargs)
        device = next(argument.device for argument in args if isinstance(argument, torch.Tensor))
        with apart(ranks.coordinate(over), device):
            return target(*args, **kwargs)

    return draw
