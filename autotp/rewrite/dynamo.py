"""Units under `torch.compile`: the program of a call is chosen while dynamo compiles, and dynamo inlines it.

Choosing one needs the shapes of a call and nothing of its data. Dynamo knows them when it reaches the call, so the choice
is made then, in plain Python, and what dynamo goes on with is the chosen program behind a check of everything that the
choice read from objects: dynamo turns these reads into guards of its own.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._dynamo.comptime import ComptimeContext, comptime
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from ..capture.opaque import Position
from ..capture.signature import CallSite, Slot
from ..capture.trace import Traced
from ..errors import TraceError
from ..runtime.traced import closed
from .build import Program

if TYPE_CHECKING:
    from .unit import UnitForward

Entry = Callable[["UnitForward", tuple[Any, ...], dict[str, Any]], Any]
# Entries by name, as attributes of a module: dynamo guards on those of its attributes that it reads, and on no others.
_entries = types.ModuleType("autotp_entries")
_choice = threading.local()


def call_in_dynamo(unit: UnitForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A unit's call as dynamo traces it."""
    args = tuple([closed(value) for value in args])
    kwargs = {name: closed(value) for name, value in kwargs.items()}
    comptime(_choose)  # reads this frame's locals
    return getattr(_entries, _chosen())(unit, args, kwargs)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _chosen() -> str:
    """The name of the entry that was chosen just before."""
    name: str = _choice.name
    return name


def _choose(context: ComptimeContext) -> None:
    """Choose, or make, the program for the call that dynamo has reached."""
    transaction = context._ComptimeContext__tx  # type: ignore[attr-defined]
    local = transaction.symbolic_locals
    unit = local["unit"].realize().value
    call = _Call(transaction)
    args, kwargs = call.value(local["args"]), call.value(local["kwargs"])
    site = unit.site(tuple(args), dict(kwargs))
    unit.watch_gradients()
    with torch._guards.tracing(None):
        traced, program = unit.compiler.program(unit, site, unit.positions, call.varying(site))
    if not traced.guards.hold(
        [call.fakes[id(tensor)] for tensor in site.tensors], traced.numbers(site, unit.positions)
    ):
        raise TraceError(f"{unit.unit.path} has no program for symbolic sizes")  # its guards are dynamo's from here on
    _choice.name = _entry_of(unit, site, traced, program)


class _Call:
    """The arguments of a call that dynamo traces, as values that only have shapes."""

    def __init__(self, transaction: Any) -> None:
        self.transaction = transaction
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.fakes: dict[int, torch.Tensor] = {}

    def value(self, variable: Any) -> Any:
        """What a variable of dynamo's stands for. Raises TraceError for what is made within the compiled region only."""
        variable = variable.realize()
        kind = type(variable).__name__
        if variable.is_tensor():
            return self._tensor(variable.as_proxy().node.meta["example_value"])
        if kind == "SymNodeVariable":
            return int(variable.sym_num.node.hint)
        if variable.is_python_constant():
            return variable.as_python_constant()
        if hasattr(variable, "items") and isinstance(variable.items, list):
            return variable.python_type()([self.value(item) for item in variable.items])
        if hasattr(variable, "items") and isinstance(variable.items, dict):
            return {key.vt.as_python_constant(): self.value(item) for key, item in variable.items.items()}
        if hasattr(variable, "value"):
            return self._object(variable)
        raise TraceError(f"a {kind} in the call of a block cannot be compiled")

    def _object(self, variable: Any) -> Any:
        """An object as it was before the compiled region, or as the region has made it so far."""
        changes = self.transaction.output.side_effects.store_attr_mutations.get(variable)
        if variable.source is not None or not changes:
            return variable.value
        made = object.__new__(type(variable.value))
        for name, part in changes.items():
            object.__setattr__(made, name, self.value(part))
        return made

    def _tensor(self, fake: torch.Tensor) -> torch.Tensor:
        with self.mode, torch.no_grad():
            sizes = [_hint(size) for size in fake.shape]
            own = torch.empty_strided(sizes, [_hint(s) for s in fake.stride()], dtype=fake.dtype, device=fake.device)
        own.requires_grad_(fake.requires_grad)
        self.fakes[id(own)] = fake
        return own

    def varying(self, site: CallSite) -> frozenset[tuple[int, int]]:
        """The dims (tensor, dim) of a call that are symbols to dynamo."""
        return frozenset(
            (number, dim)
            for number, tensor in enumerate(site.tensors)
            for dim, size in enumerate(tuple[Any, ...](self.fakes[id(tensor)].shape))
            if isinstance(size, torch.SymInt)
        )


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _entry_of(unit: UnitForward, site: CallSite, traced: Traced, program: Program) -> str:
    """The name of the entry for a program and a kind of call; made at its first use."""
    entries: dict[Any, str] = unit.compiler.entries
    key = (id(program), site.spec)
    if key not in entries:
        entries[key] = f"entry_{len(vars(_entries))}"
        setattr(_entries, entries[key], _EntryCode(unit.module, site, traced, program).compile())
    return entries[key]


class _EntryCode:
    """Python text for one program: take a call apart, check what was read from its objects, run, build the result."""

    def __init__(self, module: nn.Module, site: CallSite, traced: Traced, program: Program) -> None:
        self.site, self.traced, self.program = site, traced, program
        self.scope: dict[str, Any] = {"run": program.run, "fail": _fail}
        self.training = module.training

    def compile(self) -> Entry:
        places = {kind: [f"{path}" for path in self.site.paths(kind)] for kind in ("tensor", "number", "handle")}
        args = {kind: [_argument(path) for path in paths] for kind, paths in places.items()}
        self.handles = args["handle"]
        lines = ["def entry(unit, args, kwargs):", f"    if unit.module.training is not {self.training}: fail()"]
        for guard in self.traced.handle_guards:
            read = self._read(guard.read.handle, guard.read.path)
            lines.append(f"    if {read} != {self._constant(guard.value)}: fail()")
        numbers = [*args["number"], *(self._read(read.handle, read.path) for read in self.traced.reads)]
        positions = [f"unit.positions[{i}]" for i in range(len(self.program_positions()))]
        constants = [self._constant(value, always=True) for value in self.program.constants]
        given = ["unit.module", "unit.ranks", *args["tensor"], *numbers, *self.handles, *positions, *constants]
        lines += [f"    tensors = run({', '.join(given)})", f"    return {self._result()}"]
        exec(compile("\n".join(lines), "<autotp entry>", "exec"), self.scope)
        entry: Entry = self.scope["entry"]
        return entry

    def program_positions(self) -> list[Any]:
        """The inputs of the program that are positions."""
        return [
            node for node in self.program.graph.nodes if node.op == "placeholder" and "position_" in str(node.target)
        ]

    def _read(self, handle: int, path: Any) -> str:
        text = self.handles[handle]
        for kind, step in path:
            if kind == ".":
                text += f".{step}"
                continue
            args, kwargs = step
            given = [*map(self._constant, args), *(f"{name}={self._constant(v)}" for name, v in kwargs.items())]
            text += f"({', '.join(given)})"
        return text

    def _constant(self, value: Any, always: bool = False) -> str:
        if isinstance(value, Position):
            return f"unit.positions[{value.number}]"
        if not always and isinstance(value, (int, str, type(None))):
            return repr(value)
        name = f"constant_{len(self.scope)}"
        self.scope[name] = value
        return name

    def _result(self) -> str:
        """The result built from the program's tensors, the call's handles and constants."""
        names = [
            f"tensors[{leaf.number}]" if isinstance(leaf, Slot) and leaf.kind == "tensor"
            else self.handles[leaf.number] if isinstance(leaf, Slot)
            else self._constant(leaf)
            for leaf in self.traced.outputs
        ]  # fmt: skip
        built = pytree.tree_unflatten([_Text(name) for name in names], self.traced.out_spec)
        text = _text_of(built)
        if text is not None:
            return text
        self.scope |= {"unflatten": pytree.tree_unflatten, "spec": self.traced.out_spec}
        return f"unflatten([{', '.join(names)}], spec)"


class _Text(str):
    """A leaf of a result as Python text."""


def _text_of(tree: Any) -> str | None:
    """A tree of texts as one, None for a container that has no literal."""
    if isinstance(tree, _Text):
        return str(tree)
    if type(tree) in (tuple, list):
        parts = [_text_of(part) for part in tree]
        if None in parts:
            return None
        joined = ", ".join(map(str, parts))
        return f"[{joined}]" if type(tree) is list else f"({joined}{',' if len(parts) == 1 else ''})"
    return None


def _argument(path: str) -> str:
    """A place in (args, kwargs) as an expression: `[0][1]` is `args[1]`, `[1]['mask']` is `kwargs['mask']`."""
    return ("args" if path.startswith("[0]") else "kwargs") + path[3:]


def _fail() -> None:
    raise TraceError("a compiled block was called in a way it was not compiled for")
