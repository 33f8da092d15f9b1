"""Programs made by hand: a traced module as it is, with the nodes between values that a test puts there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from autotp.axes.facts import Fact
from autotp.axes.layout import Cut, Factor, Factors, layout_of
from autotp.axes.term import Axis, axes_of, axes_of_dims
from autotp.placement.certificate.check import Certificate, certify
from autotp.placement.certificate.values import Contract
from autotp.placement.placed import placed_as, say
from autotp.placement.transition import Transition, slice_layout
from autotp.placement.typed import TypedGraph
from autotp.rewrite.functions import function_of
from tests.placement.test_flow import OVER, Place, problem_of

EVERYWHERE = (OVER,)


class Hand:
    """A module whose parameters are cut at some places; `over` says over which mesh factors, where it is not two ranks."""

    def __init__(
        self,
        module: nn.Module,
        *places: Place,
        inputs: tuple[torch.Tensor, ...] = (),
        over: Mapping[Place, Factors] | None = None,
        positions: bool = False,
    ) -> None:
        problem = problem_of(module, *inputs)
        dims = problem.parameters()
        cuts: dict[Axis, Cut] = {}
        for place in places:
            name, dim, number = place
            axis = list(axes_of(dims[name][dim]))[number]
            cuts[axis] = Cut((over or {}).get(place, EVERYWHERE), axis.size)
        typed = TypedGraph.copy_of(problem.graph, problem.typing)
        self.graph, self.contract = typed.graph, Contract(cuts)
        for node in self.graph.nodes:
            say(node, origin=node.name)
            if node in typed.facts:
                say(node, fact=typed.facts[node])
        if positions:
            (axis,) = axes_of(self.fact("tensor_0").dims[-2])
            self.contract = Contract(cuts, "tensor_0", axis, EVERYWHERE)
        with self.graph.inserting_before(next(iter(self.graph.nodes))):
            self.ranks = self.graph.placeholder("ranks")

    def node(self, name: str) -> torch.fx.Node:
        return next(node for node in self.graph.nodes if node.name == name)

    def fact(self, name: str) -> Fact:
        found: Fact = placed_as(self.node(name)).fact
        return found

    def put(self, does: str, value: str, *readers: str, over: Factors = EVERYWHERE, **more: Any) -> str:
        """A node behind a value, for some of its readers or for all of them; returns its name."""
        source, others = self.node(value), tuple(self.node(name) for name in more.pop("others", ()))
        record = Transition(does, over, **more)
        users = [self.node(name) for name in readers] or list(source.users)
        with self.graph.inserting_before(next(node for node in self.graph.nodes if node in users)):
            made = self.graph.call_function(function_of(record), (source, *others, self.ranks))
        made.meta["val"] = source.meta["val"]
        say(made, transition=record)
        for user in users:
            user.replace_input_with(source, made)
        return made.name

    def slice(self, value: str, of: str, *readers: str) -> str:
        """The slice of a whole value along all cut axes that it has."""
        cuts, dims = self.contract.cuts, self.fact(of).dims
        axes = frozenset(axes_of_dims(dims)) & cuts.keys()
        over = tuple(dict.fromkeys(factor for axis in axes for factor in cuts[axis].over))
        layouts = tuple((dim, slice_layout(term, frozenset(), axes, cuts), over) for dim, term in enumerate(dims))
        return self.put("slice", value, *readers, over=over, dims=layouts)

    def cut_dim(self, of: str, dim: int, over: Factors = EVERYWHERE) -> tuple[Any, ...]:
        """A dim of a value as a record says it."""
        return ((dim, layout_of(self.fact(of).dims[dim], self.contract.cuts), over),)

    def doctor(self, name: str, **other: Any) -> None:
        """Let an operator have another fact."""
        say(self.node(name), fact=replace(self.fact(name), **other))

    def check(self) -> Certificate:
        self.graph.lint()
        return certify(self.graph, self.contract)


TWO_BY_TWO = Factor(2, 2), Factor(2, 1)
