"""Operator rules are proved by arithmetic: what runs whole, and what runs cut on simulated ranks, gives the same numbers.

Operands are parameters of a small module, captured and rewritten as a unit of a model is. One axis is cut at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from autotp.axes.call import Call, is_tensor, named_arguments
from autotp.axes.facts import Typing
from autotp.axes.infer import infer
from autotp.axes.layout import Cut, Cuts, Factor
from autotp.axes.rules import operator_rules
from autotp.axes.sizes import Sizes
from autotp.axes.term import Axis, Sum, axes_of, resolve
from autotp.capture.functions import OpaqueFunction
from autotp.capture.signature import call_site
from autotp.capture.trace import trace
from autotp.capture.traced import Traced
from autotp.capture.units import Unit
from autotp.capture.varying import VaryingDims
from autotp.chains.collect import mark_collected
from autotp.errors import UnsoundPlanError
from autotp.placement.place import place
from autotp.rewrite.build import Program, build
from autotp.runtime.collectives.slices import take
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.logits import closed

Function: TypeAlias = Callable[..., Any]
Handles: TypeAlias = Callable[[], dict[str, Any]]
# The n-th axis of a dim of an operand.
Place: TypeAlias = tuple[int, int, int]

RANKS = (2, 3)
TOLERANCE = 1e-12


class Subject(nn.Module):
    """A function of its parameters `operand_0`, `operand_1`, ..; those in `inputs` are arguments of its call instead."""

    def __init__(self, function: Function, operands: Sequence[torch.Tensor], inputs: Collection[int] = ()) -> None:
        super().__init__()
        self.function, self.count, self.inputs = function, len(operands), tuple(sorted(inputs))
        for i, operand in enumerate(operands):
            if i not in self.inputs:
                value = operand.detach().clone()
                setattr(self, f"operand_{i}", nn.Parameter(value, requires_grad=is_differentiable(value)))

    def forward(self, *inputs: Any, **handles: Any) -> Any:
        given = dict(zip(self.inputs, inputs, strict=True))
        operands = [given[i] if i in given else getattr(self, f"operand_{i}") for i in range(self.count)]
        return self.function(*operands, **handles)


@dataclass(frozen=True)
class Captured:
    """A function as a graph with its terms, the operands it was captured for, and a maker of its opaque handles."""

    function: Function
    operands: tuple[torch.Tensor, ...]
    inputs: tuple[int, ...]
    handles: Handles
    traced: Traced
    typing: Typing

    @property
    def operators(self) -> frozenset[str]:
        """Names of all operators in the graph."""
        calls = [node for node in self.traced.graph.nodes if node.op == "call_function"]
        return frozenset(Call(node, dict(self.typing.facts), Sizes()).name for node in calls)

    def terms(self, operand: int) -> list[list[Axis]]:
        """The axes of each dim of a parameter, major to minor."""
        for node in self.traced.graph.nodes:
            if node.op == "get_attr" and node.target == f"operand_{operand}":
                return [list(axes_of(term)) for term in self.typing.dims(node)]
        return [[] for _ in self.operands[operand].shape]

    def beside(self, axis: Axis) -> set[Axis]:
        """The axes of all sums that an axis is in, itself included."""
        terms = (resolve(term) for fact in self.typing.facts.values() for dims in fact.outputs for term in dims)
        return {axis}.union(*(axes_of(term) for term in terms if isinstance(term, Sum) and axis in axes_of(term)))

    def axes(self) -> Iterator[tuple[Place, Axis]]:
        """Every axis of every parameter, by its places."""
        for i in range(len(self.operands)):
            for dim, axes in enumerate(self.terms(i)):
                yield from (((i, dim, number), axis) for number, axis in enumerate(axes))


@dataclass
class Proof:
    """Which cuts, by axis and number of ranks, were proved, and which were refused, with the reason."""

    captured: Captured
    proved: set[tuple[Axis, int]] = field(default_factory=set)
    refused: dict[tuple[Axis, int], str] = field(default_factory=dict)

    def sizes(self, operand: int, ranks: int) -> list[list[int]]:
        """The sizes of the axes, dim by dim, that a parameter was proved to be cuttable along."""
        return [[axis.size for axis in axes if (axis, ranks) in self.proved] for axes in self.captured.terms(operand)]


def capture(
    function: Function,
    operands: Sequence[torch.Tensor],
    inputs: Collection[int] = (),
    *,
    handles: Handles = dict,
    sizes: Sequence[torch.Tensor] = (),
    marked: Collection[int] = (),
    rules: tuple[Path, ...] = (),
) -> Captured:
    """Trace a function of tensors and infer its terms.

    Args:
        function: takes the operands, and the handles by name.
        operands: parameters, except for those in `inputs`.
        inputs: numbers of the operands that are whole on every rank.
        handles: makes the Python objects of one call.
        sizes: other operands; where the inputs among them have other sizes, the sizes are symbols.
        marked: numbers of weights whose product is collected from all ranks at once.
        rules: folders of rules besides the built-in one.
    """
    # Functions with a rule are looked for where the class of a module is written: here, where the cases are.
    kind = type("Subject", (Subject,), {"__module__": "tests.axes.cases"})
    subject, varying = kind(function, operands, inputs), VaryingDims()
    sites = [
        call_site(subject, tuple(_fresh(values[i]) for i in subject.inputs), handles())
        for values in (operands, sizes or operands)
    ]
    for site in sites:
        varying.observe(site)
    traced = trace(subject, Unit("", 0), sites[0], varying, rules=rules)
    mark_collected(traced.graph, {f"operand_{i}" for i in marked})  # which nobody else has
    _give_copies(traced.graph)
    typing = infer(traced.graph, operator_rules(rules))
    return Captured(function, tuple(operands), subject.inputs, handles, traced, typing)


def _give_copies(graph: torch.fx.Graph) -> None:
    """A unit keeps whole what it gives in the memory of a parameter: let it give a copy."""
    (output,) = graph.find_nodes(op="output")
    copies = {}
    for node in [each for each in output.all_input_nodes if isinstance(each.meta["val"], torch.Tensor)]:
        with graph.inserting_before(output):
            copies[node] = graph.call_function(torch.ops.aten.clone.default, (node,))
        copies[node].meta = {"val": node.meta["val"]}
    output.args = ([copies.get(each, each) for each in output.args[0]],)


def prove(
    function: Function,
    operands: Sequence[torch.Tensor],
    ranks: Sequence[int] = RANKS,
    inputs: Collection[int] = (),
    *,
    sums_together: bool = False,
    **options: Any,
) -> Proof:
    """Cut every axis that may be cut, one at a time, over every number of ranks; `options` as for `capture`.

    With `sums_together` all segments of a sum are cut at the same time.
    Raises AssertionError where an output, or the gradient of an operand, then differs from the whole one.
    """
    proof = Proof(capture(function, operands, inputs, **options))
    truths = [_Truth(proof.captured)]
    if options.get("sizes"):
        truths.append(_Truth(replace(proof.captured, operands=tuple(options["sizes"]))))
    free = [axis for _, axis in proof.captured.axes() if _is_free(axis)]
    beside = proof.captured.beside if sums_together else lambda axis: {axis}
    for group in dict.fromkeys(frozenset(filter(_is_free, beside(axis))) for axis in free):
        for count in ranks:
            reasons = [truth.check({axis: _cut(axis.size, count) for axis in group}, count) for truth in truths]
            if reasons[0] is None:
                proof.proved |= {(axis, count) for axis in group}
            else:
                proof.refused |= {(axis, count): reasons[0] for axis in group}
    return proof


def _is_free(axis: Axis) -> bool:
    return axis.size > 1 and not axis.pins


def _cut(size: int, ranks: int) -> Cut:
    return Cut((Factor(ranks, 1),), -(-size // ranks) * ranks)


def prove_partial(
    function: Function, operands: Sequence[torch.Tensor], group: Collection[int], ranks: Sequence[int] = RANKS
) -> None:
    """Let the operands of a group arrive as partial sums.

    Raises AssertionError where an output or a gradient then differs from the whole one, or where it is refused.
    """
    summands = 4
    stacked = [torch.stack([o / summands] * summands) if i in group else o for i, o in enumerate(operands)]
    for i in group:
        stacked[i] = stacked[i] + torch.linspace(-0.1, 0.1, summands).view(-1, *[1] * operands[i].dim())

    def of_sums(*values: torch.Tensor) -> Any:
        return function(*(value.sum(0) if i in group else value for i, value in enumerate(values)))

    captured = capture(of_sums, stacked)
    axes = {captured.terms(i)[0][0] for i in group if captured.terms(i)[0]}
    truth = _Truth(captured)
    for count in ranks:
        reason = truth.check({axis: _cut(summands, count) for axis in axes}, count)
        assert reason is None, f"a partial sum is refused: {reason}"


class _Truth:
    """The outputs and gradients of a function that runs whole."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        handles = captured.handles()
        self.outputs, self.gradients = _run(lambda *values: captured.function(*values, **handles), captured.operands)

    def check(self, cuts: Cuts, size: int) -> str | None:
        """Run the function cut; returns the reason if it is refused. Raises AssertionError if a number differs."""
        traced, count = self.captured.traced, len(self.captured.operands)
        try:
            placement = place(traced.graph, self.captured.typing, cuts, lambda *_: 1.0)
        except UnsoundPlanError as refusal:
            return str(refusal)
        program = build(placement, traced.constants, "operator")
        layouts = [program.layouts.get(f"operand_{i}", [None] * self.captured.operands[i].dim()) for i in range(count)]

        def run(ranks: Ranks) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            local = [take(o, own, ranks.rank) for o, own in zip(self.captured.operands, layouts, strict=True)]
            return _run(on_rank(program, ranks, self.captured), local)

        for rank, (outputs, gradients) in enumerate(simulate(size, run)):
            where = f"{program.code}\ncut {[str(a) for a in cuts]} in {size}, rank {rank}"
            _same(outputs, self.outputs, f"{where}: output")
            slices = [take(g, own, rank) for g, own in zip(self.gradients, layouts, strict=True)]
            _same(gradients, slices, f"{where}: gradient of operand")
        return None


def on_rank(program: Program, ranks: Ranks, captured: Captured) -> Function:
    def run(*values: torch.Tensor) -> list[torch.Tensor]:
        module = nn.Module()
        for i, value in enumerate(values):
            module.__dict__[f"operand_{i}"] = value
        inputs = [values[i] for i in captured.inputs]
        results = program.run(module, ranks, *inputs, *captured.handles().values(), *program.constants)
        return [closed(result) for result in results]

    return run


def _run(function: Function, operands: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs, and the gradients of all operands under random cotangents (zero where there is none)."""
    values = [_fresh(operand) for operand in operands]
    outputs = [leaf for leaf in pytree.tree_leaves(function(*values)) if isinstance(leaf, torch.Tensor)]
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in outputs]
    pairs = [(o, c.to(o.dtype)) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
    wanted = [value for value in values if value.requires_grad]
    found: Sequence[Any] = [None] * len(wanted)
    if pairs and wanted:
        found = torch.autograd.grad([o for o, _ in pairs], wanted, [c for _, c in pairs], allow_unused=True)
    given = {id(value): gradient for value, gradient in zip(wanted, found, strict=True) if gradient is not None}
    gradients = [given.get(id(value), torch.zeros_like(value)).detach() for value in values]
    return [output.detach() for output in outputs], gradients


def _fresh(operand: torch.Tensor) -> torch.Tensor:
    return operand.detach().clone().requires_grad_(is_differentiable(operand))


def is_differentiable(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _same(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], where: str) -> None:
    assert len(found) == len(wanted), f"{where}s: {len(found)} instead of {len(wanted)}"
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        try:
            torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)
        except AssertionError as error:
            raise AssertionError(f"{where} {number}: {error}") from None


# -- what the facts claim of single operators ---------------------------------------------------------------------


def check_claims(captured: Captured) -> int:
    """Check every claim of linearity and of zeros at every node, on the values that reach it; returns how many.

    Raises AssertionError naming the node and the group of operands for which a claim does not hold.
    """
    checked = 0
    for node, values in _reached(captured):
        fact, arguments = captured.typing.facts[node], named_arguments(node)
        generator = torch.Generator().manual_seed(1)

        def apply(replaced: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
            return _apply(captured, node, arguments, values, replaced)  # noqa: B023

        for group in fact.linear:
            first = {i: values[fact.operands[i]] for i in group}
            second = {i: _other(value, generator) for i, value in first.items()}
            joint = apply({i: pytree.tree_map(lambda x, y: 2 * x - 3 * y, first[i], second[i]) for i in group})
            apart = [2 * one - 3 * other for one, other in zip(apply(first), apply(second), strict=True)]
            _same(joint, apart, f"{node.format_node()} is not linear in {sorted(group)}: result")
        for group in fact.zeros:
            results = apply({i: pytree.tree_map(torch.zeros_like, values[fact.operands[i]]) for i in group})
            results = results[: fact.zero_results]
            zeros = [torch.zeros_like(result) for result in results]
            _same(results, zeros, f"{node.format_node()} is not zero where {sorted(group)} are: result")
        checked += len(fact.linear) + len(fact.zeros)
    return checked


def _reached(captured: Captured) -> Iterator[tuple[torch.fx.Node, dict[torch.fx.Node, Any]]]:
    """Every operator in the graph, and the values of all nodes before it."""
    values: dict[torch.fx.Node, Any] = {}
    given = iter(captured.inputs)
    for node in captured.traced.graph.nodes:
        if node.op == "get_attr":
            constants = captured.traced.constants
            own = constants.get(str(node.target))
            values[node] = own if own is not None else captured.operands[int(str(node.target).rpartition("_")[2])]
        elif node.op == "placeholder":
            values[node] = captured.operands[next(given)]
        elif node.op == "call_function":
            if node in captured.typing.facts:
                yield node, values
            args, kwargs = pytree.tree_map_only(torch.fx.Node, values.__getitem__, (node.args, node.kwargs))
            values[node] = node.target(*args, **kwargs)


def _apply(
    captured: Captured,
    node: torch.fx.Node,
    arguments: Mapping[str, Any],
    values: Mapping[torch.fx.Node, Any],
    replaced: Mapping[int, Any],
) -> list[torch.Tensor]:
    """Run one node with some of its operands replaced, by their position among the operands."""
    number, operands = iter(range(10**6)), captured.typing.facts[node].operands

    def value(leaf: Any) -> Any:
        if is_tensor(leaf) or leaf in operands:
            position = next(number)
            return replaced.get(position, values[leaf])
        return values[leaf] if isinstance(leaf, torch.fx.Node) else leaf

    filled = pytree.tree_map(value, arguments)
    if isinstance(node.target, OpaqueFunction):
        filled = {name: filled[name] for name in node.target.argument_names}
        results = node.target(*filled.values())
        return list(results)
    by_position = [filled.pop(str(i)) for i in range(len(node.args)) if str(i) in filled]
    if isinstance(node.target, torch._ops.OpOverload):
        by_position = [
            filled.pop(a.name) for a in node.target._schema.arguments if not a.kwarg_only and a.name in filled
        ]
    result = node.target(*by_position, **filled)  # type: ignore[operator]
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _other(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_other(part, generator) for part in value)
    if not is_differentiable(value):
        return torch.randint(0, 5, value.shape, generator=generator).to(value.dtype)
    return torch.randn(value.shape, generator=generator, dtype=value.dtype)
