"""Tracing: one call of one unit as a torch.fx graph with symbolic sizes.

The graph's `get_attr` nodes are the unit's parameters and buffers by path; its placeholders are, in order, the tensors,
the handles and the positions of the call; every node that holds a tensor carries a fake one in `meta["val"]`. Of
attributes and placeholders `meta["gradient"]` says whether they may receive one, and `meta["parameter"]` marks parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from ..errors import TraceError
from .clone import clone
from .normalise import normalise
from .opaque import (
    READ,
    HandleGuard,
    Handles,
    OpaqueCall,
    Position,
    StandIn,
    Widths,
    follow,
    handle_number,
    operator_value,
    pending_call,
    release,
)
from .signature import CallSite, Slot, VaryingDims
from .symbols import Guards, Symbols
from .units import Unit


@dataclass(frozen=True)
class Traced:
    """A captured call and the conditions under which it is valid for another one.

    `shared` says that it holds for units of equal shape at any position; `unread` are the numbers of result tensors that
    nobody is known to read.
    """

    graph: torch.fx.Graph
    site: CallSite
    outputs: tuple[Any, ...]
    out_spec: pytree.TreeSpec
    guards: Guards
    handle_guards: tuple[HandleGuard, ...]
    constants: Mapping[str, torch.Tensor]
    shared: bool
    unread: frozenset[int] = frozenset()

    def valid_for(self, site: CallSite, positions: tuple[int, ...]) -> bool:
        """Returns if the graph computes this call, given that the keys are equal."""
        return self.guards.hold(site.tensors) and all(g.holds(site.handles, positions) for g in self.handle_guards)

    def result(self, tensors: list[torch.Tensor], handles: list[Any]) -> Any:
        """The call's result in its original structure from the tensors the graph returned."""
        filled = [leaf.pick(tensors, handles) if isinstance(leaf, Slot) else leaf for leaf in self.outputs]
        return pytree.tree_unflatten(filled, self.out_spec)


def trace(
    module: nn.Module,
    unit: Unit,
    site: CallSite,
    varying: VaryingDims,
    unread: frozenset[int] = frozenset(),
    widths: Widths | None = None,
) -> Traced:
    """Capture one call of a unit. The module is left as it was, and no weight is read.

    `widths` says of what the tensors that the call's objects hold are parts.

    Raises TraceError, with the reason, for what cannot be captured.
    """
    try:
        tracer = _Tracer(module, unit, site, varying, widths)
        try:
            return replace(tracer.run(), unread=unread)
        finally:
            release(tracer.handles)
    except TraceError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise TraceError(f"{unit.path or 'the model'} cannot be traced: {type(error).__name__}: {reason}") from error


class _Tracer:
    def __init__(
        self, module: nn.Module, unit: Unit, site: CallSite, varying: VaryingDims, widths: Widths | None
    ) -> None:
        device = next((t.device for t in site.tensors if t.device.type != "meta"), None)
        self.site, self.symbols = site, Symbols(device)
        self.handles = Handles(self.symbols, widths)
        self.module = clone(module)
        self.positions: list[Position] = []
        for number, (path, name) in enumerate(unit.positions):
            owner = self.module.get_submodule(path)
            self.positions.append(Position(getattr(owner, name), number))
            setattr(owner, name, self.positions[-1])
        self.state = self._fake_state()
        self.inputs = [
            self._fake_input(i, tensor, varying.of(path, tensor))
            for i, (path, tensor) in enumerate(zip(site.tensor_paths(), site.tensors, strict=True))
        ]
        self.outputs: list[Any] = []
        self.out_spec: Any = None

    def _fake_state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by path, as fakes; a tied parameter is one fake under several paths."""
        fakes: dict[int, torch.Tensor] = {}
        named = [
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        ]
        for _, tensor in named:
            if id(tensor) not in fakes:
                fake = self.symbols.tensor(tensor)
                fakes[id(tensor)] = (
                    fake.requires_grad_() if isinstance(tensor, nn.Parameter) and _is_float(fake) else fake
                )
        return {name: fakes[id(tensor)] for name, tensor in named}

    def _fake_input(self, number: int, tensor: torch.Tensor, dynamic: set[int]) -> torch.Tensor:
        fake = self.symbols.tensor(tensor, dynamic)
        self.symbols.bind(number, fake)
        if not (tensor.requires_grad and _is_float(fake)):
            return fake
        with self.symbols.mode, torch.enable_grad():
            return fake.requires_grad_().clone()  # no leaf: a block may write into its input

    def run(self) -> Traced:
        names = list({id(fake): name for name, fake in reversed(self.state.items())}.values())[::-1]
        flat = [self.state[name] for name in names] + self.inputs
        with self.symbols.mode, enable_python_dispatcher():
            tracer = make_fx(
                lambda flat: self._call(names, flat),
                tracing_mode="real",
                pre_dispatch=True,
                _allow_non_fake_inputs=True,
            )
            traced = tracer(flat)
        guards = self.symbols.guards()
        graph, constants = self._graph(traced, names)
        normalise(graph, constants)
        return Traced(
            graph=graph,
            site=self.site,
            outputs=tuple(self.outputs),
            out_spec=self.out_spec,
            guards=guards,
            handle_guards=tuple(self.handles.guards),
            constants=constants,
            shared=not any(position.used for position in self.positions),
        )

    def _call(self, names: list[str], flat: list[torch.Tensor]) -> list[torch.Tensor]:
        by_fake = {id(self.state[name]): tensor for name, tensor in zip(names, flat[: len(names)], strict=True)}
        state = {name: by_fake[id(fake)] for name, fake in self.state.items()}
        stand_ins = [self.handles.stand_in(handle) for handle in self.site.handles]
        args, kwargs = self.site.rebuild(flat[len(names) :], stand_ins)
        with _reparametrize_module(self.module, state):
            result = self.module(*args, **kwargs)
        leaves, self.out_spec = pytree.tree_flatten(result, is_leaf=lambda leaf: type(leaf) is StandIn)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        number = iter(range(len(tensors)))
        self.outputs = [self._output(leaf, number) for leaf in leaves]
        return tensors

    def _output(self, leaf: Any, number: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return Slot("tensor", next(number))
        handle = handle_number(leaf)
        if handle is not None:
            return Slot("handle", handle)
        leaf = operator_value(leaf)
        if leaf is None or isinstance(leaf, (bool, int, float, str)):
            return leaf
        raise TraceError(f"it returns a {type(leaf).__name__}, which is neither a tensor nor an argument")

    def _graph(self, traced: torch.fx.GraphModule, names: list[str]) -> tuple[torch.fx.Graph, dict[str, torch.Tensor]]:
        """The traced graph with parameters as attributes, opaque calls as Python calls and the handles as inputs."""
        graph = torch.fx.Graph()  # owned by no module, since its attributes live in many
        graph.output(graph.graph_copy(traced.graph, {}))
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        placeholders = [node for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)]
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        for node, name in zip(placeholders[: len(names)], names, strict=True):
            node.meta["parameter"] = name in parameters
            node.meta["gradient"] = self.state[name].requires_grad
            _become_attribute(graph, node, name)
        for node in [
            n for n in graph.nodes if n.op == "placeholder" and not isinstance(n.meta.get("val"), torch.Tensor)
        ]:
            graph.erase_node(node)
        for i, node in enumerate(placeholders[len(names) :]):
            node.name = node.target = f"tensor_{i}"
            node.meta["gradient"] = self.inputs[i].requires_grad
        inputs = _Inputs(graph, len(self.site.handles), len(self.positions))
        for node in [n for n in graph.nodes if n.target is torch.ops.autotp.opaque.default]:
            _replace_opaque(graph, node, inputs)
        constants = {
            str(node.target): getattr(traced, str(node.target))
            for node in graph.nodes
            if node.op == "get_attr" and hasattr(traced, str(node.target)) and str(node.target) not in self.state
        }
        for node in graph.nodes:
            if node.op == "get_attr" and node.target in constants:
                node.meta["val"] = constants[str(node.target)]
        return graph, constants


class _Inputs:
    """Placeholders for handles and positions, after those for tensors."""

    def __init__(self, graph: torch.fx.Graph, handles: int, positions: int) -> None:
        first = next((node for node in graph.nodes if node.op != "placeholder"), None)
        assert first is not None
        with graph.inserting_before(first):
            self.handles = [graph.placeholder(f"handle_{i}") for i in range(handles)]
            self.positions = [graph.placeholder(f"position_{i}") for i in range(positions)]


def _become_attribute(graph: torch.fx.Graph, node: torch.fx.Node, name: str) -> None:
    if node.users:
        with graph.inserting_before(node):
            attribute = graph.create_node("get_attr", name, (), {}, name=name.replace(".", "_"))
        attribute.meta = dict(node.meta)
        node.replace_all_uses_with(attribute)
    graph.erase_node(node)


def call_opaque(
    handle: Any,
    path: tuple[tuple[str, Any], ...],
    args: list[Any],
    kwargs: dict[str, Any],
    lengths: tuple[int | None, ...],
    positions: Sequence[int],
) -> list[Any]:
    """Run a method of a handle for real; returns the tensors of its result.

    `lengths` are the sizes of the results' last dim but one for which alone the trace holds, None where it holds for any.
    Raises TraceError if the object gives another.
    """
    result = follow(handle, path, positions)(*args, **kwargs)
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    for tensor, length in zip(tensors, lengths, strict=True):
        if length is not None and tensor.shape[-2] != length:
            raise TraceError(f"a {type(handle).__name__} gave {tensor.shape[-2]} positions to a program for {length}")
        if path[-1][1] == READ and tensor.requires_grad and torch.is_grad_enabled():
            raise TraceError(
                f"a tensor read from a {type(handle).__name__} wants a gradient; detach it, or use no_grad"
            )
    return tensors


torch.fx.node.has_side_effect(call_opaque)  # an item set in an object matters, though no tensor comes of it


def _length(value: torch.Tensor) -> int | None:
    size = value.shape[-2] if value.dim() > 1 else None
    if size is None or isinstance(size, int):
        return size
    return int(size.node.expr) if size.node.expr.is_number else None  # type: ignore[unreachable]


def _replace_opaque(graph: torch.fx.Graph, node: torch.fx.Node, inputs: _Inputs) -> None:
    tensors, token = node.args
    assert isinstance(token, int) and isinstance(tensors, (list, tuple))
    handles, number = pending_call(token)
    call: OpaqueCall = handles.calls[number]
    operands = iter(tensors)

    def value(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return next(operands)
        return inputs.positions[leaf.number] if isinstance(leaf, Position) else leaf

    args, kwargs = pytree.tree_unflatten([value(leaf) for leaf in call.leaves], call.spec)
    method = str(call.path[-1][1])
    with graph.inserting_before(node):
        lengths = tuple(map(_length, node.meta["val"]))
        replacement = graph.call_function(
            call_opaque, (inputs.handles[call.handle], call.path, list(args), kwargs, lengths, inputs.positions)
        )
    replacement.meta = {**node.meta, "opaque": method}
    node.replace_all_uses_with(replacement)
    graph.erase_node(node)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


__all__ = ["Traced", "call_opaque", "trace"]
