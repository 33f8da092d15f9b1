"""From a placement to the function that a rank runs."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..axes.annotation import annotation
from ..axes.layout import Factors, Layout
from ..errors import TraceError
from ..placement.calls import Sent, sent
from ..placement.certificate.check import certify
from ..placement.place import Placement
from ..placement.placed import placed_as, say
from ..placement.transition import Joined, Transition
from .direct import Own, directly
from .draws import draw_apart
from .insert import insert_steps
from .layers import Work, call_layers, keep_paddings_zero, mask_lookups, parameter_layouts
from .localise import localise
from .opaque import expect_local_shapes, pass_gradients
from .picks import pick_local_parts
from .put import note_cuts, put_wholes
from .through import go_through_results

_NUMBER_OF_DEVICE = re.compile(r"(device\(type='\w+'), index=\d+\)")
_SENDING = ("all_reduce", "all_gather", "reduce_scatter", "gather_positions", "take_positions")


@dataclass(frozen=True, eq=False)
class Program:
    """The local graph of a unit and its code: `run(module, ranks, *tensors, *numbers, *handles, *positions, *constants)`.

    The tensor numbered `cut` comes, and goes, cut over its positions. `sends` are the collectives of a call and its backward.
    """

    graph: torch.fx.Graph
    code: str
    run: Callable[..., list[torch.Tensor]]
    constants: tuple[tuple[str, torch.Tensor], ...]
    layouts: Mapping[str, tuple[Layout, ...]]
    cut: int | None = None
    sends: tuple[Sent, ...] = ()

    @cached_property
    def writes_into_objects(self) -> bool:
        """Whether it writes into values that it reads from the objects of a call."""
        return any(placed_as(node).written for node in self.graph.nodes)

    def describe(self) -> str:
        """The code, but for the numbers of devices, and what each inserted collective does: equal texts, equal programs."""
        inserted = map(str, self._collectives())
        code = _NUMBER_OF_DEVICE.sub(r"\1)", self.code)
        return "\n".join([code, *inserted, *(f"{name}: {list(map(str, own))}" for name, own in self.layouts.items())])

    def groups(self) -> list[Factors]:
        """The mesh factors that collectives of this program run over, in the order of the program."""
        return [each.over for each in self._collectives() if each.kind in _SENDING]

    def _collectives(self) -> list[Transition | Joined]:
        return [record for node in self.graph.nodes if (record := placed_as(node).collective) is not None]


def build(
    placement: Placement, constants: Mapping[str, torch.Tensor], name: str, layers: Mapping[str, Work] | None = None
) -> Program:
    """Run all passes on a placement's graph (which changes) and compile it; `layers` are those of the unit's module.

    What each node of the result is, `placed_as` says.
    """
    graph = placement.typed.graph
    for node in graph.nodes:
        say(node, origin=placed_as(node).origin or node.name)
    for node, fact in placement.typed.facts.items():
        say(node, fact=fact)
    layouts, sends = parameter_layouts(placement), tuple(sent(placement.typed, placement.flow, placement.calls))
    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        ranks = graph.placeholder("ranks")
    note_cuts(placement)
    insert_steps(placement, ranks)
    certify(graph, placement.contract)
    localise(placement)
    expect_local_shapes(placement)
    pass_gradients(graph)
    draw_apart(placement, ranks)
    call_layers(graph, layouts, layers or {})
    mask_lookups(graph, layouts, ranks)
    pick_local_parts(placement, ranks)
    keep_paddings_zero(graph, layouts, ranks)
    values = _constants_as_inputs(graph, constants)
    _inputs_first(graph)
    graph.eliminate_dead_code(is_impure_node=_must_stay)
    _check_constants(graph, values)
    graph.lint()
    certify(graph, placement.contract)
    final = directly(graph)
    go_through_results(final)
    put_wholes(final)
    code, run = compile_graph(final, name)
    cut = placement.sequence.number if placement.sequence is not None else None
    return Program(graph, code, run, values, layouts, cut, sends)


def _check_constants(graph: torch.fx.Graph, values: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raises TraceError if a program would compute with a tensor that has no numbers, as gradients have that a trace takes."""
    named = {f"constant_{i}": value for i, (_, value) in enumerate(values)}
    for node in graph.find_nodes(op="placeholder"):
        if node.users and isinstance(named.get(str(node.target)), FakeTensor):
            raise TraceError("it computes a gradient in its forward, or something else that no graph shows")


def _must_stay(node: torch.fx.Node) -> bool:
    """Returns if a node matters even though nobody reads it."""
    writes = annotation(node).writes is not None or (node.op == "call_function" and node.is_impure())
    return node.op in ("placeholder", "output") or writes


def _constants_as_inputs(
    graph: torch.fx.Graph, constants: Mapping[str, torch.Tensor]
) -> tuple[tuple[str, torch.Tensor], ...]:
    """Tensors that tracing found in the code become inputs, since the unit's module has no attribute for them. Returns
    their names and what they were."""
    values: list[tuple[str, torch.Tensor]] = []
    for node in [n for n in graph.nodes if n.op == "get_attr" and n.target in constants]:
        with graph.inserting_before(node):
            entry = graph.placeholder(f"constant_{len(values)}")
        entry.meta = dict(node.meta)
        values.append((str(node.target), constants[str(node.target)]))
        node.replace_all_uses_with(entry)
        graph.erase_node(node)
    return tuple(values)


def _inputs_first(graph: torch.fx.Graph) -> None:
    """Placeholders in the order of the run function, before everything else."""
    order = {kind: i for i, kind in enumerate(("ranks", "tensor", "number", "handle", "position", "constant"))}
    inputs = [node for node in graph.nodes if node.op == "placeholder"]

    def place(node: torch.fx.Node) -> tuple[int, int]:
        kind, _, number = str(node.target).partition("_")
        return order[kind], int(number or 0)

    inputs.sort(key=place)
    for node in reversed(inputs):
        first = next(iter(graph.nodes))
        if node is not first:
            first.prepend(node)


_count = 0


def compile_graph(graph: torch.fx.Graph, name: str) -> tuple[str, Callable[..., Any]]:
    global _count
    _count += 1
    generated = graph.python_code("self")
    scope = {name: value.function if isinstance(value, Own) else value for name, value in generated.globals.items()}
    file = f"<autotp program {_count} of {name}>"
    try:
        exec(compile(generated.src, file, "exec"), scope)
    except SyntaxError as error:
        raise TraceError(f"a module or parameter of {name} has a name that Python code cannot spell") from error
    linecache.cache[file] = (len(generated.src), None, generated.src.splitlines(keepends=True), file)
    return generated.src, scope["forward"]
