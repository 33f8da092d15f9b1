"""A graph with its facts, as a working copy that passes may change."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from ..axes.annotation import annotate, annotation, copied
from ..axes.call import writes_aside, written_by
from ..axes.facts import Fact, Typing
from ..axes.layout import Cuts, Factor
from ..axes.term import Axis, axes_of, axes_of_dims


@dataclass
class TypedGraph:
    """`facts` has an entry for every node that holds tensors; passes keep it so. What is found of all of the graph is kept: no
    pass changes it after that."""

    graph: torch.fx.Graph
    facts: dict[torch.fx.Node, Fact]
    known: dict[torch.fx.Node, tuple[object, frozenset[Axis]]] = field(default_factory=dict)
    disjoint: dict[Hashable, object] = field(default_factory=dict)  # results, by how a rank has them

    @classmethod
    def copy_of(cls, graph: torch.fx.Graph, typing: Typing) -> TypedGraph:
        """A copy that can be changed without touching the traced graph."""
        own, nodes = copied(graph)
        facts = {
            nodes[node]: replace(
                fact,
                operands=tuple(nodes[operand] for operand in fact.operands),
                pick=fact.pick and replace(fact.pick, by=nodes[fact.pick.by]),
            )
            for node, fact in typing.facts.items()
        }
        return cls(own, facts)

    @cached_property
    def gradient(self) -> frozenset[torch.fx.Node]:
        """Values that may receive a gradient."""
        return _needs_gradient(self)

    @cached_property
    def written(self) -> frozenset[torch.fx.Node]:
        """Values in memory that some node writes into: whoever reads one must read that memory, and no sum of it."""
        return frozenset(shared for node in self.graph.nodes for shared in (annotation(node).writes or ()))

    @cached_property
    def ends(self) -> list[torch.fx.Node]:
        """Nodes by which values leave the unit: calls that only store them in objects, and the output."""
        return [n for n in self.graph.nodes if n.op == "output" or (n in self.facts and not self.facts[n].outputs)]

    def replace_uses(self, node: torch.fx.Node, value: torch.fx.Node) -> None:
        """Let everything that reads a node read another value instead, that value itself excepted."""
        for writer in self.graph.nodes:
            if node in (writes := annotation(writer).writes or ()):
                annotate(writer, writes=(*writes, value))
        users = [user for user in node.users if user is not value]
        for user in users:
            user.replace_input_with(node, value)
            if user in self.facts:
                fact = self.facts[user]
                operands = tuple(value if operand is node else operand for operand in fact.operands)
                self.facts[user] = replace(fact, operands=operands)

    def axes(self, node: torch.fx.Node) -> frozenset[Axis]:
        """Every axis in the result(s) of a node."""
        outputs, known = self.facts[node].outputs, self.known.get(node)
        if known is None or known[0] is not outputs:
            known = outputs, frozenset(axis for dims in outputs for axis in axes_of_dims(dims))
            self.known[node] = known
        return known[1]

    def contracted(self, node: torch.fx.Node) -> set[Axis]:
        """Every axis a node sums over."""
        return {axis for term in self.facts[node].contracts for axis in axes_of(term)}


def cut_in(axes: Set[Axis], cuts: Cuts) -> frozenset[Axis]:
    """The cut ones of some axes."""
    return frozenset(axis for axis in axes if axis in cuts)


def factors_in(axes: Mapping[Axis, object] | frozenset[Axis] | set[Axis], cuts: Cuts) -> frozenset[Factor]:
    """The mesh factors that some cut axes are cut over."""
    return frozenset(factor for axis in axes if axis in cuts for factor in cuts[axis].over)


def is_parameter(node: torch.fx.Node) -> bool:
    """Returns if a node reads a parameter (and not a buffer or constant)."""
    return annotation(node).parameter


def is_of_parameters(typed: TypedGraph, node: torch.fx.Node) -> bool:
    """Returns if a value is a parameter, or is made of parameters alone."""
    seen, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        if is_parameter(each):
            continue
        operands = typed.facts[each].operands
        if not operands:
            return False
        waiting += [operand for operand in operands if operand not in seen]
        seen.update(operands)
    return True


def _needs_gradient(typed: TypedGraph) -> frozenset[torch.fx.Node]:
    """Nodes reachable from parameters and differentiable inputs."""
    reached: set[torch.fx.Node] = set()
    enabled = True
    for node in typed.graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            enabled = bool(node.args[0])
        if node not in typed.facts:
            continue
        fact = typed.facts[node]
        note = annotation(node)
        if not enabled and not writes_aside(node) and not reached.isdisjoint(written_by(node)):
            reached.add(node)  # what it writes into keeps its gradient
        if note.gradient or (
            enabled and gives_gradient(node, fact) and any(operand in reached for operand in fact.operands)
        ):  # an input, a parameter, or a value read from an object
            shared = () if writes_aside(node) else (note.writes or ())
            reached.update((node, *(each for each in shared if each in typed.facts)))
    return frozenset(reached)


def gives_gradient(node: torch.fx.Node, fact: Fact) -> bool:
    """Returns if a gradient of an operator's result gives one of what it reads."""
    value = node.meta["val"]
    values = value if isinstance(value, (list, tuple)) else [value]
    numbers = any(isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in values)
    return numbers and fact.gradient != "none"
