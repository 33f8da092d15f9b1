"""Writing down a choice: from cuts and placement to the plan's records."""

from __future__ import annotations

import torch

from ..axes.annotation import annotation
from ..axes.layout import Cuts, Layout, factors_of, is_padded, is_whole, layout_of, ordered, parts_of
from ..axes.term import axes_of, axes_of_dims
from ..chains.collect import marked
from ..chains.match import Proposal, readers
from .choose import Choice, UnitProblem
from .plan import CollectivePlan, ParameterPlan, UnitPlan
from .weigh import Collective, Weigher


def unit_plan(instances: tuple[str, ...], problem: UnitProblem, choice: Choice, weigher: Weigher) -> UnitPlan:
    """The plan of all units of one structure."""
    nodes = {
        str(node.target): node for node in problem.graph.nodes if node.op == "get_attr" and annotation(node).parameter
    }
    collectives = tuple(map(collective_plan, weigher.collectives(choice.placement)))
    parameters = tuple(_parameter(name, node, problem, choice.cuts) for name, node in nodes.items())
    collected = marked(problem.graph) if choice.cuts else ()
    sequence = choice.placement.sequence is not None and bool(choice.cuts)
    whole = choice.placement.left_whole
    # Single units stand before and behind the blocks: nothing is handed on from one to the next.
    positions = (f"positions: {whole}",) if whole and len(instances) > 1 else ()
    not_cut = (*_not_cut(problem, choice), *positions)
    return UnitPlan(instances, parameters, collectives, collected, not_cut, problem.keep, sequence)


def collective_plan(priced: Collective) -> CollectivePlan:
    """The record of a priced collective."""
    return CollectivePlan(
        kind=priced.kind,
        phase=priced.phase,
        of=priced.of,
        nodes=tuple(part.node for part in priced.parts),
        ranks=parts_of(priced.over),
        over=tuple(map(str, priced.over)),
        elements=str(priced.elements).replace("**", "^").replace("*", "·"),
        wire_bytes=priced.bytes,
        seconds=priced.seconds,
    )


def _not_cut(problem: UnitProblem, choice: Choice) -> tuple[str, ...]:
    left = [p for p in problem.proposals if not any(axis in choice.cuts for axis in p.axes)]
    cut = {name for name, dims in problem.parameters().items() if axes_of_dims(dims) & choice.cuts.keys()}
    reasons = [
        f"{', '.join(p.parameters)}: rule {p.rule.name}: "
        + (
            "cut along other dimensions instead"
            if cut & set(p.parameters)
            else choice.left.get(p, "cutting it would save no memory")
        )
        for p in left
    ]
    return tuple(dict.fromkeys([*map(str, problem.misses), *choice.refused, *reasons]))


def _parameter(name: str, node: torch.fx.Node, problem: UnitProblem, cuts: Cuts) -> ParameterPlan:
    dims = problem.typing.dims(node)
    layouts = tuple(layout_of(term, cuts) for term in dims)
    proposal = _proposal(problem, dims, cuts)
    return ParameterPlan(
        name=name,
        shape=tuple(int(size) for size in node.meta["val"].shape),
        placement=_placement(problem, node, layouts),
        layouts=tuple(map(str, layouts)),
        local_shape=tuple(layout.local_size for layout in layouts),
        rule=proposal.rule.name if proposal else "",
        reason=_reason(problem, name, node, layouts, proposal),
    )


def _proposal(problem: UnitProblem, dims: tuple[object, ...], cuts: Cuts) -> Proposal | None:
    axes = {axis for axis in axes_of_dims(dims) if axis in cuts}  # type: ignore[arg-type]
    return next((p for p in problem.proposals if axes & set(p.axes)), None)


def _placement(problem: UnitProblem, node: torch.fx.Node, layouts: tuple[Layout, ...]) -> str:
    """column, row, vocabulary or replicated, as in Megatron-LM; expert where rows pick one of its parts."""
    if all(map(is_whole, layouts)):
        return "replicated"
    cut = [i for i, layout in enumerate(layouts) if not is_whole(layout)]
    picked = axes_of_dims(fact.pick.choice for fact in problem.typing.facts.values() if fact.pick is not None)
    if any(set(axes_of(problem.typing.dims(node)[i])) & picked for i in cut):
        return "expert"
    for reader in readers(node, problem.typing):
        fact = problem.typing.facts[reader]
        contracted = {axis for term in fact.contracts for axis in axes_of(term)}
        if any(set(axes_of(problem.typing.dims(node)[i])) & contracted for i in cut):
            return "vocabulary" if fact.looks_up else "row"
    return "column"


def _reason(
    problem: UnitProblem, name: str, node: torch.fx.Node, layouts: tuple[Layout, ...], proposal: Proposal | None
) -> str:
    if proposal is None:
        near = next((miss for miss in problem.misses if name in miss.parameters), None)
        if near is not None:
            return f"rule {near.rule}, step {near.step}: {near.reason}"
        return "no chain rule cuts it" if len(layouts) > 1 else "it has no cut dimension"
    ranks = parts_of(ordered(frozenset().union(*map(factors_of, layouts))))
    words = [f"cut in {ranks} along the dimension that ends at {proposal.site}"]
    if any(map(is_padded, layouts)):
        words.append("padded with zeros to divide")
    return ", ".join(words)
