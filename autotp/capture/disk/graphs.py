"""A traced graph as data. What nodes hold is described, and made again as fakes with sizes of the same names."""

from __future__ import annotations

import base64
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy
import sympy
import torch
from torch.utils import _pytree as pytree

from ...axes.annotation import Annotation, annotate, annotation
from ..calls import OF_OBJECTS
from ..functions import FunctionRules, OpaqueFunction, applying, derivative_of, rule_of
from ..opaque import follow
from ..symbols import LaterCheck, Symbols, later_check_of
from .formulas import formula_data, formula_of
from .names import UnnamedError, found, name_of, operator_name, operator_named
from .values import value_data, value_of

MOST_BYTES = 1 << 20  # of a constant
# Functions that nodes call, by the names that they have on disk: no other is ever called for what is read there.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{f"opaque.{f.__name__}": f for f in (*OF_OBJECTS, follow)},
    **{
        f"operator.{name}": getattr(operator, name)
        for name in "getitem mul add sub neg floordiv truediv mod pow eq ne lt le gt ge and_ or_ not_ pos abs".split()
    },
    **{f"math.{name}": getattr(math, name) for name in "ceil floor trunc sqrt".split()},
    **{f"torch.{name}": getattr(torch, name) for name in dir(torch) if name.startswith("sym_")},
}
_NAMES = {function: name for name, function in _FUNCTIONS.items()}


class GraphWriter:
    """A graph as data: `tensors` describes all that nodes hold, each kind once, and `symbols` the sizes in these."""

    def __init__(self, graph: torch.fx.Graph, symbols: Symbols, constants: Mapping[str, torch.Tensor]) -> None:
        self.numbers = {node: number for number, node in enumerate(graph.nodes)}
        self.sizes, self.made, self.constants = symbols, symbols.made, constants
        self.tensors: dict[str, int] = {}
        self.kinds: list[Any] = []
        self.used: dict[sympy.Symbol, None] = {}
        self.equal: dict[sympy.Symbol, Any] = {}
        self.nodes = [self._node(node) for node in graph.nodes]
        self.held = frozenset(self.used)

    def symbols(self) -> list[Any]:
        """Every size in the order in which they were made: with which name, what it stood for, its symbol's name, whether nodes
        hold it, or only conditions speak of it, and what it was found to be equal to, if that is to be known."""
        used = [symbol for symbol in self.made if symbol in self.used]
        return [[*self.made[each], each.name, each in self.held, self.equal.get(each)] for each in used]

    def formula(self, formula: Any) -> Any:
        """A formula as data. Raises UnnamedError for a size that only a run can tell."""
        found = set() if isinstance(formula, int) else formula.free_symbols
        if not found <= self.made.keys():
            raise UnnamedError
        self.used.update(dict.fromkeys(found))
        return formula_data(formula)

    def _node(self, node: torch.fx.Node) -> list[Any]:
        target, said = self._target(node), annotation(node)
        notes = {each.name: getattr(said, each.name) for each in fields(Annotation)}
        kept = {name: note for name, note in notes.items() if note != getattr(_PLAIN, name)}
        if said.writes is not None:
            kept["writes"] = [self.numbers[each] for each in said.writes]
        if said.holding:
            kept["holding"] = sorted(said.holding)
        given = [value_data(part, self.numbers) for part in (tuple(node.args), dict(node.kwargs))]
        return [node.op, target, node.name, *given, self._held(node), kept]

    def _target(self, node: torch.fx.Node) -> Any:
        if node.op != "call_function":
            return str(node.target)
        if (check := later_check_of(node.target)) is not None:
            symbols = [[symbol.name, bool(symbol.is_positive)] for symbol in check.symbols]
            return [symbols, [*check.lengths], [formula_data(each) for each in check.conditions]]
        if isinstance(node.target, torch._ops.OpOverload):
            return operator_name(node.target)
        if isinstance(node.target, OpaqueFunction):
            return _function_data(node.target)
        if node.target not in _NAMES:
            raise UnnamedError
        return _NAMES[node.target]

    def _held(self, node: torch.fx.Node) -> Any:
        if node.op == "get_attr" and node.target in self.constants:
            return "constant"
        return self._value(node.meta.get("val"))

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            kind = [[self._size(size) for size in value.shape], value_data(value.dtype), str(value.device)]
            number = self.tensors.setdefault(str(kind), len(self.kinds))
            self.kinds += [kind] if number == len(self.kinds) else []
            return number
        if isinstance(value, (tuple, list)):
            return [type(value).__name__, *map(self._value, value)]
        if isinstance(value, torch.SymInt):
            return {"size": self._size(value)}
        if value is not None and type(value) is not int:
            raise UnnamedError
        return None if value is None else {"size": value}

    def _size(self, size: Any) -> Any:
        if isinstance(size, int):
            return size
        formula = size.node.expr
        if formula.is_number:  # found while it was traced: a size that was a number from the start is another thing
            formula = size.node._expr
            for symbol in formula.free_symbols:
                self.equal[symbol] = self.formula(self.sizes.settled(symbol))
        return self.formula(formula)


_PLAIN = Annotation()


class GraphReader:
    """A graph from data, with symbols of its own. Raises UnnamedError where torch names these otherwise."""

    def __init__(self, data: Mapping[str, Any], constants: Mapping[str, torch.Tensor], rules: FunctionRules) -> None:
        self.symbols, self.constants, self.rules, self.sizes = Symbols(), constants, rules, dict[str, Any]()
        self.named: dict[str, sympy.Symbol] = {}
        for name, hint, symbol, is_held, _ in data["symbols"]:
            if not is_held:  # torch takes long to make a size
                self.named[symbol] = _integer(symbol, not name.startswith("read_"))
                continue
            size = self.symbols.named(name, hint)
            if str(size.node.expr) != symbol:
                raise UnnamedError
            self.sizes[symbol], self.named[symbol] = size, size.node.expr
        self.hints = {size.node.expr: size.node.hint for size in self.sizes.values()}
        self.fakes = [self._fake(*kind) for kind in data["tensors"]]
        self.graph = torch.fx.Graph()
        nodes: list[torch.fx.Node] = []
        for node in data["nodes"]:
            nodes.append(self._node(nodes, *node))
        for node, (*_, notes) in zip(nodes, data["nodes"], strict=True):
            if "writes" in notes:
                annotate(node, writes=tuple(nodes[number] for number in notes["writes"]))
        for *_, symbol, _, equal in data["symbols"]:
            if equal is not None:
                self.symbols.equate(self.named[symbol], formula_of(equal, self.named))

    def _node(
        self, nodes: list[torch.fx.Node], op: str, target: Any, name: str, args: Any, kwargs: Any, held: Any, notes: Any
    ) -> torch.fx.Node:
        given = value_of(args, nodes), value_of(kwargs, nodes)
        node = self.graph.create_node(op, self._target(target) if op == "call_function" else target, *given, name=name)
        if node.name != name:
            raise UnnamedError
        if held is not None:
            node.meta["val"] = self.constants[target] if held == "constant" else self._value(held)
        kept = {key: note for key, note in notes.items() if key != "writes"}
        if "holding" in kept:
            kept["holding"] = frozenset(kept["holding"])
        if kept:
            annotate(node, **kept)
        return node

    def _target(self, target: Any) -> Any:
        if isinstance(target, str):
            return _FUNCTIONS[target] if target in _FUNCTIONS else operator_named(target)
        if isinstance(target, dict):
            return _function_of(target, self.rules)
        symbols, lengths, conditions = target
        made = {name: self.named.get(name) or _integer(name, positive) for name, positive in symbols}
        check = LaterCheck(tuple(made.values()), tuple(lengths), tuple(formula_of(each, made) for each in conditions))
        return check.function

    def _value(self, held: Any) -> Any:
        if isinstance(held, int):
            return self.fakes[held]
        if isinstance(held, dict):
            return self._size(held["size"])
        return None if held is None else {"tuple": tuple, "list": list}[held[0]](map(self._value, held[1:]))

    def _size(self, data: Any) -> Any:
        if isinstance(data, (int, str)):
            return self.sizes[data] if isinstance(data, str) else data
        formula = formula_of(data, self.named)
        return self.symbols.env.create_symintnode(formula, hint=int(formula.xreplace(self.hints)))

    def _fake(self, sizes: Sequence[Any], dtype: Any, device: str) -> torch.Tensor:
        return self.symbols.plain(list(map(self._size, sizes)), value_of(dtype), torch.device(device))


def _function_data(target: OpaqueFunction) -> dict[str, Any]:
    """An opaque function as data: it has the name of a function, or of the `torch.autograd.Function` that it applies."""
    kind = derivative_of(target.function)
    return {
        "operator": target.operator,
        "applies": kind is not None,
        "name": name_of(target.function if kind is None else kind),
        "leaves": value_data(target.leaves),
        "places": [*target.places],
        "tree": pytree.treespec_dumps(target.spec),
    }


def _function_of(data: Mapping[str, Any], rules: FunctionRules) -> OpaqueFunction:
    """The opaque function of some data, if it is one that a rule knows or that has a derivative of its own."""
    function, operator = found(*data["name"]), data["operator"]
    if data["applies"]:
        known = isinstance(function, type) and issubclass(function, torch.autograd.Function)
    else:
        known = rule_of(function, rules) is not None and operator == f"function.{function.__name__}"
    if not known:
        raise UnnamedError
    tree = pytree.treespec_loads(data["tree"])
    called = applying(function) if data["applies"] else function
    return OpaqueFunction(operator, called, value_of(data["leaves"]), data["places"], tree)


def _integer(name: str, positive: bool) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, **({"positive": True} if positive else {}))


def constant_data(tensor: torch.Tensor) -> list[Any]:
    """A tensor that a graph has made as data. Raises UnnamedError for one that is large, or is on another device than the CPU."""
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.requires_grad
    if not plain or type(tensor) is not torch.Tensor or tensor.nbytes > MOST_BYTES:
        raise UnnamedError
    with torch.no_grad():
        held = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return [value_data(tensor.dtype), [*tensor.shape], base64.b64encode(held).decode()]


def constant_of(dtype: Any, shape: Sequence[int], text: str) -> torch.Tensor:
    """The tensor of some data."""
    held = torch.from_numpy(numpy.frombuffer(base64.b64decode(text), dtype=numpy.uint8).copy())
    return held.view(value_of(dtype)).reshape(list(shape))
