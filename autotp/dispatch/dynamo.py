"""Units under `torch.compile`: the program of a call is chosen while dynamo compiles, and dynamo inlines it.

Choosing one needs the shapes of a call and nothing of its data. Dynamo knows them when it reaches the call, so the choice
is made then, in plain Python, and what dynamo goes on with is the chosen program behind a check of everything that the
choice read from objects: dynamo turns these reads into guards of its own.
"""

from __future__ import annotations

import threading
import types
from typing import Any

import torch
from torch._dynamo.comptime import ComptimeContext, comptime
from torch._subclasses.fake_tensor import FakeTensorMode

from ..capture.signature import CallSite
from ..capture.traced import Traced
from ..errors import TraceError
from ..rewrite.build import Program
from ..runtime.traced import closed
from .entry import EntryCode
from .live import LiveUnit

# Entries by name, as attributes of a module: dynamo guards on those of its attributes that it reads, and on no others.
_entries = types.ModuleType("autotp_entries")
_choice = threading.local()


def call_in_dynamo(unit: LiveUnit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
    with torch._guards.tracing(None):
        traced, program = unit.compiler.program(unit, site, unit.positions, call.varying(site))
    if not traced.guards.hold(
        [call.fakes[id(tensor)] for tensor in site.tensors], traced.numbers(site, unit.positions)
    ):
        raise TraceError(f"{unit.unit.path} has no program for symbolic sizes")  # its guards are dynamo's from here on
    transaction.output.torch_function_subclass_inlined = True  # the graph computes on parts where it runs too
    _choice.name = _entry_of(unit.compiler.entries, unit.module.training, site, traced, program)


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


def _entry_of(entries: dict[Any, str], training: bool, site: CallSite, traced: Traced, program: Program) -> str:
    """The name of the entry for a program and a kind of call; made at its first use."""
    key = (id(program), site.spec)
    if key not in entries:
        entries[key] = f"entry_{len(vars(_entries))}"
        setattr(_entries, entries[key], EntryCode(site, traced, program).in_graph(training))
    return entries[key]
