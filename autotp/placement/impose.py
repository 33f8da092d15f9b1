"""Imposing a plan's parameter layouts on a newly traced graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..axes.facts import Typing
from ..axes.layout import Cut, Layout, Leaf, SumLayout
from ..axes.term import Axis, Product, Sum, Term, axes_of, axis, resolve
from ..axes.unify import CannotUnify, unify
from ..errors import UnsoundPlanError
from .typed import is_parameter


def impose(
    graph: torch.fx.Graph, typing: Typing, layouts: Mapping[str, Sequence[Layout]], *, others_follow: bool = False
) -> dict[Axis, Cut]:
    """The cuts of a graph's axes that give its parameters these layouts. The other parameters are whole, unless they are to
    follow: then they are cut along the axes that they share with these.

    Raises UnsoundPlanError naming the parameter if the graph's terms do not allow its layout, or if an axis that is cut
    for one parameter is cut otherwise, or not at all, for another.
    """
    wanted: list[tuple[str, Axis, Cut | None]] = []
    for node in graph.nodes:
        if node.op == "get_attr" and node.target in layouts:
            name, own = str(node.target), layouts[str(node.target)]
            if len(own) != len(typing.dims(node)):
                raise UnsoundPlanError(
                    f"{name} has {len(typing.dims(node))} dims, the plan gives layouts for {len(own)}"
                )
            for term, layout in zip(typing.dims(node), own, strict=True):
                wanted += [(name, *pair) for pair in _match(name, term, layout)]
        elif is_parameter(node) and not others_follow:  # a rank holds all of it
            wanted += [(str(node.target), part, None) for term in typing.dims(node) for part in axes_of(term)]
    cuts: dict[Axis, Cut] = {}
    for name, term, cut in wanted:
        if cut is not None:
            for part, own_cut in _spread(name, term, cut):
                if cuts.setdefault(part, own_cut) != own_cut:
                    raise UnsoundPlanError(f"{name} cuts an axis of {part.size} differently from another parameter")
    for name, term, cut in wanted:
        if cut is None and any(part in cuts for part in axes_of(term)):
            raise UnsoundPlanError(f"{name} keeps whole an axis of {term.size} that another parameter cuts")
    return cuts


def _match(name: str, term: Term, layout: Layout) -> list[tuple[Axis, Cut | None]]:
    found: list[tuple[Axis, Cut | None]] = []

    def as_term(part: Layout) -> Term:
        if isinstance(part, Leaf):
            made = axis(part.size)
            if isinstance(made, Axis):
                found.append((made, part.cut))
            return made
        return (Sum if isinstance(part, SumLayout) else Product)(tuple(map(as_term, part.parts)))

    try:
        unify(as_term(layout), term)
    except CannotUnify as error:
        raise UnsoundPlanError(
            f"{name} is made of {resolve(term)}, which cannot be laid out as {layout}: {error}"
        ) from error
    return found


def _spread(name: str, term: Axis, cut: Cut) -> list[tuple[Axis, Cut]]:
    """The cut of an axis that the graph knows to be made of finer ones: it goes to the major one."""
    parts = list(axes_of(term))
    if len(parts) == 1 and parts[0].size == term.size:
        return [(parts[0], cut)]
    resolved = resolve(term)
    if (
        isinstance(resolved, Product)
        and cut.padded == term.size
        and isinstance(major := resolve(resolved.parts[0]), Axis)
    ):
        ranks = cut.padded // cut.local
        if major.size % ranks == 0:
            return [(major, Cut(cut.over, major.size))]
    raise UnsoundPlanError(f"{name} cuts an axis of {term.size} that the operators take apart into {resolved}")
