"""What a rank computes at least under a plan whose cuts no operator here has: another system's, which gathers and cuts again.

A product is as much of the whole as the rank has of its weight. What reads no weight is as much of it as the smallest part that
it reads; a result is a part where a weight is cut along what the result has, and whole where the weight's cut is summed over.
What is gathered on the way counts as cut still, so that the other system computes no less than this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import sympy
import torch

from ..axes.annotation import copied
from ..axes.facts import Typing
from ..axes.infer import infer
from ..axes.layout import Leaf, parts_of
from ..axes.layout_text import parse_layout
from ..axes.rules import operator_rules
from ..axes.term import Sum, Term, axes_of, axes_of_dims, resolve
from ..capture.traced import Traced
from ..chains.match import weights_of
from ..placement.place import Placement
from .cost import Hardware, Workload
from .counter import Counter
from .plan import ParameterPlan, UnitPlan
from .weigh import Weigher
from .work import Work, counted, placed_as_planned


def least_work(plan: UnitPlan, traced: Traced, machine: Hardware, workload: Workload, rules: tuple[Path, ...]) -> Work:
    """The work of a unit, as much of it as a rank has of the weights."""
    whole = tuple(replace(p, layouts=tuple(map(str, p.shape))) for p in plan.parameters)
    alone = replace(plan, parameters=whole, collected=(), sequence=False)
    placement, weigher = placed_as_planned(alone, traced, machine, workload, rules, 1)
    counter = _Shares(placement, weigher, {parameter.name: parameter for parameter in plan.parameters})
    part = sum(p.local_elements for p in plan.parameters) / max(sum(p.elements for p in plan.parameters), 1)
    work = counted(counter)
    kept = sympy.Float(part)
    return replace(work, read=counter.read_locally(), saved=work.saved * kept, cached=work.cached * kept)


def by_segments(plan: UnitPlan, traced: Traced, rules: tuple[Path, ...]) -> UnitPlan:
    """The plan with every dim of segments that it cuts in one piece cut in each of its segments instead, where that is even: what
    the other system computes, if it is right."""
    graph, _ = copied(traced.graph)
    typing = infer(graph, operator_rules(rules))
    dims = {str(node.target): typing.dims(node) for node in graph.nodes if node.op == "get_attr"}

    def cut(parameter: ParameterPlan) -> ParameterPlan:
        terms = dims.get(parameter.name, ())
        layouts = (_by_segments(*each) for each in zip(terms, parameter.layouts, strict=True)) if terms else ()
        return replace(parameter, layouts=tuple(layouts) or parameter.layouts)

    return replace(plan, parameters=tuple(map(cut, plan.parameters)))


def _by_segments(term: Term, text: str) -> str:
    layout, segments = parse_layout(text), resolve(term)
    if not isinstance(segments, Sum) or not isinstance(layout, Leaf) or layout.cut is None:
        return text
    sizes, over = [part.size for part in segments.parts], layout.cut.over
    if any(size % parts_of(over) for size in sizes):
        return text
    return f"[{' + '.join(f'{size}/{over[0].size}@{over[0].stride}' for size in sizes)}]" if len(over) == 1 else text


class _Shares(Counter):
    """Counts the operations of a whole unit, each by the share that a rank has of it."""

    def __init__(self, placement: Placement, weigher: Weigher, parameters: Mapping[str, ParameterPlan]) -> None:
        super().__init__(placement, weigher)
        self.parameters, self.typing = parameters, Typing(self.facts, {})
        self.shares: dict[torch.fx.Node, float] = {}
        for node in self.nodes:
            self.shares[node] = self._share_of_result(node)

    def flops(self, node: torch.fx.Node) -> sympy.Expr:
        weights = weights_of(node, self.typing)
        share = min(map(self._held, weights)) if weights else self._share_of_operands(node)
        return super().flops(node) * sympy.Float(share)

    def read_locally(self) -> int:
        """Elements of the weights on this rank that every call reads all of."""
        names = (str(node.target) for node in self.weights())
        return sum(self.parameters[name].local_elements for name in names if name in self.parameters)

    def _share_of_result(self, node: torch.fx.Node) -> float:
        weights = [weight for weight in weights_of(node, self.typing) if self._held(weight) < 1]
        if not weights:
            return self._share_of_operands(node)
        summed = axes_of_dims(self.facts[node].contracts)
        return 1.0 if any(self._cut_axes(weight) & summed for weight in weights) else min(map(self._held, weights))

    def _share_of_operands(self, node: torch.fx.Node) -> float:
        return min((self.shares.get(operand, 1.0) for operand in self.facts[node].operands), default=1.0)

    def _held(self, weight: torch.fx.Node) -> float:
        parameter = self.parameters.get(str(weight.target))
        return parameter.local_elements / parameter.elements if parameter is not None and parameter.elements else 1.0

    def _cut_axes(self, weight: torch.fx.Node) -> set[object]:
        parameter = self.parameters[str(weight.target)]
        sizes = zip(parameter.shape, parameter.local_shape, self.facts[weight].dims, strict=True)
        return {axis for whole, local, term in sizes if local < whole for axis in axes_of(term)}
