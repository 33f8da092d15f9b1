"""Opaque calls in a traced graph: each becomes the Python call that a rank makes, and its sizes are checked at the end."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..axes.annotation import annotate, annotation
from ..errors import TraceError
from .calls import OpaqueCall, call_opaque, check_opaque, read_number
from .functions import OpaqueFunction
from .handles import pending_call
from .opaque import Path, Position, follow
from .stand_in import handle_path
from .symbols import LaterCheck, Place, Symbols, symbols_of


class Inputs:
    """Placeholders for constant numbers, handles and positions, after those for tensors."""

    def __init__(self, graph: torch.fx.Graph, numbers: list[Any], handles: int, positions: int) -> None:
        first = next((node for node in graph.nodes if node.op != "placeholder"), None)
        assert first is not None
        with graph.inserting_before(first):
            for i, number in enumerate(numbers):
                if not isinstance(number, torch.SymInt):
                    graph.placeholder(f"number_{i}")
            self.handles = [graph.placeholder(f"handle_{i}") for i in range(handles)]
            self.positions = [graph.placeholder(f"position_{i}") for i in range(positions)]


class Replacement:
    """Replaces the node of an opaque call by the Python call it stands for."""

    def __init__(self, graph: torch.fx.Graph, node: torch.fx.Node, inputs: Inputs) -> None:
        *operands, token = node.args
        assert isinstance(token, int)
        self.graph, self.node, self.inputs = graph, node, inputs
        self.handles, number = pending_call(token)
        self.call: OpaqueCall = self.handles.calls[number]
        # Tensors, then symbolic numbers.
        self.operands, self.sizes = (iter(pytree.tree_leaves(part)) for part in operands or ((), ()))

    def replace(self) -> None:
        call = self.call
        with self.graph.inserting_before(self.node):
            new = self._function() if call.handle is None else self._method(self.inputs.handles[call.handle])
        new.meta = dict(self.node.meta)
        if call.target not in (read_number, check_opaque):
            name = call.name if call.handle is None else f"opaque.{call.name}"
            annotate(new, opaque=name, owner=call.owner, holding=call.holding)
        annotate(new, gradient=call.gradient)
        self.node.replace_all_uses_with(new)
        self.graph.erase_node(self.node)

    def _method(self, handle: torch.fx.Node) -> torch.fx.Node:
        given: tuple[Any, ...] = ()
        if self.call.target is call_opaque:
            args, kwargs = pytree.tree_unflatten([self._value(leaf) for leaf in self.call.leaves], self.call.spec)
            given = (list(args), kwargs)
        if self.call.target is check_opaque:
            given = (self.call.bound(),)
        elif self.call.target is not read_number:
            given = (*given, self._shapes())
        return self.graph.call_function(self.call.target, (handle, self._path(self.call.path), *given))

    def _function(self) -> torch.fx.Node:
        """Constants of the call stay in the target, since a graph cannot hold them all."""
        leaves, spec = [self._value(leaf) for leaf in self.call.leaves], self.call.spec
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.fx.Node)]
        constants = [None if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
        target = OpaqueFunction(self.call.name, self.call.target, constants, places, spec)
        return self.graph.call_function(target, (*(leaves[place] for place in places), self._shapes()))

    def _value(self, leaf: Any) -> Any:
        """An argument of the call as an argument of the node."""
        if isinstance(leaf, torch.Tensor):
            return next(self.operands)
        if isinstance(leaf, Position):
            return self.inputs.positions[leaf.number]
        if isinstance(leaf, torch.SymInt):
            return next(self.sizes)
        if isinstance(leaf, nn.Module) and id(leaf) in self.handles.paths:
            return self.graph.create_node("get_attr", self.handles.paths[id(leaf)])
        inside = handle_path(leaf)
        if inside is None:
            return leaf
        handle, path = inside
        whole = self.inputs.handles[handle]
        return self.graph.call_function(follow, (whole, self._path(path), ())) if path else whole

    def _path(self, path: Path) -> Any:
        def step(leaf: Any) -> Any:
            if isinstance(leaf, torch.SymInt):
                return self._size(leaf)
            return self.inputs.positions[leaf.number] if isinstance(leaf, Position) else leaf

        return pytree.tree_map(step, path, is_leaf=lambda leaf: isinstance(leaf, Position))

    def _size(self, size: torch.SymInt) -> torch.fx.Node:
        """A symbolic size that is passed to a method: read off the input that has it."""
        for node in [node for node in self.graph.nodes if node.op == "placeholder"]:
            value = node.meta.get("val")
            for dim, own in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if str(own) == str(size):
                    return self.graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
        raise TraceError(f"a method of an object is given the size {size}, which no input has")

    def _shapes(self) -> tuple[tuple[int | None, ...], ...]:
        return tuple(tuple(map(_constant, value.shape)) for value in self.node.meta["val"])


_SAME = sympy.symbols("a b", integer=True)
_EQUAL = LaterCheck(_SAME, (1,), (sympy.Eq(*_SAME),))


def check_later(graph: torch.fx.Graph, symbols: Symbols) -> None:
    """Check, at the end of the program, the conditions on sizes and numbers that only opaque objects know."""
    later = _Later(graph, symbols)
    later.check_reads()
    with graph.inserting_before(next(iter(reversed(graph.nodes)))):
        later.check_conditions()
        later.check_equal()


class _Later:
    """What is known while a program runs: `numbers` by their expressions, and `lengths` of what objects gave."""

    def __init__(self, graph: torch.fx.Graph, symbols: Symbols) -> None:
        self.graph, self.symbols = graph, symbols
        self.inputs = {str(node.target): node for node in graph.nodes if node.op == "placeholder"}
        self.reads = [node for node in graph.nodes if node.target is read_number]
        self.numbers, self.lengths = dict[Any, torch.fx.Node](), dict[Any, tuple[torch.fx.Node, int]]()
        for node in graph.nodes:
            self._note(node)

    def _note(self, node: torch.fx.Node) -> None:
        value, source = node.meta.get("val"), node.args[0] if node.args else None
        if isinstance(value, torch.SymInt):
            self.numbers.setdefault(value.node.expr, node)
        elif isinstance(value, torch.Tensor) and isinstance(source, torch.fx.Node) and annotation(source).opaque:
            sizes: tuple[Any, ...] = tuple(value.shape)
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt):
                    self.lengths.setdefault(size.node.expr, (node, dim))

    def check_reads(self) -> None:
        """Raises TraceError where a number that is read while the program runs must be one that it was. It may be equal to
        another size or number that is known then."""
        found = {node.meta["val"].node._expr for node in self.reads}
        fixed = any(self.symbols.settled(symbol).is_number for symbol in self.symbols.reads)
        for condition in self.symbols.later_conditions():
            own, settled = condition.free_symbols & self.symbols.reads, self.symbols.settled(condition)
            fixed |= bool(own - found) or (bool(own) and isinstance(settled, sympy.Eq))
        if fixed:
            raise TraceError("it takes another way for each number that it reads from an object which it has changed")

    def check_conditions(self) -> None:
        """Check what is not known before."""
        settled = [self.symbols.settled(condition) for condition in self.symbols.later_conditions()]
        conditions = [c for c in settled if c.free_symbols and all(map(self._is_known, c.free_symbols))]
        used = symbols_of(conditions)
        if conditions:
            places = tuple(i for i, symbol in enumerate(used) if symbol in self.lengths)
            check = LaterCheck(tuple(used), places, tuple(conditions))
            self.graph.call_function(check.function, ([self._value_of(symbol) for symbol in used],))

    def check_equal(self) -> None:
        """Check that every number that is read is what it was found to be equal to."""
        for read in self.reads:
            symbol = read.meta["val"].node.expr
            equal = [self._at(place) for place in self.symbols.places(symbol)]
            equal += [other for other in self.reads if other is not read and other.meta["val"].node.expr == symbol]
            if symbol in self.lengths:
                equal.append(self._length(symbol))
            for other in equal:
                self.graph.call_function(_EQUAL.function, ([read, other],))

    def _is_known(self, symbol: Any) -> bool:
        return self.symbols.place(symbol) is not None or symbol in self.numbers or symbol in self.lengths

    def _value_of(self, symbol: Any) -> torch.fx.Node:
        place = self.symbols.place(symbol)
        if place is not None:
            return self._at(place)
        return self.numbers[symbol] if symbol in self.numbers else self._length(symbol)

    def _length(self, symbol: Any) -> torch.fx.Node:
        return self.graph.call_function(torch.ops.aten.sym_size.int, self.lengths[symbol])

    def _at(self, place: Place) -> torch.fx.Node:
        position, dim = place
        if dim is None:
            return self.inputs[f"number_{position}"]
        return self.graph.call_function(torch.ops.aten.sym_size.int, (self.inputs[f"tensor_{position}"], dim))


def _constant(size: Any) -> int | None:
    """A size that is the same in every run of the program, None for one that is not."""
    expression = size.node.expr if isinstance(size, torch.SymInt) else size
    return int(expression) if isinstance(expression, int) or expression.is_number else None


def become_attribute(graph: torch.fx.Graph, node: torch.fx.Node, name: str) -> None:
    """Have a parameter or buffer in place of an input; the input is gone."""
    if node.users:
        with graph.inserting_before(node):
            attribute = graph.create_node("get_attr", name, (), {}, name=name.replace(".", "_"))
        attribute.meta = dict(node.meta)
        node.replace_all_uses_with(attribute)
    graph.erase_node(node)
