"""Units under `torch.compile`: the program of a call is chosen while dynamo compiles, and dynamo inlines it.

Choosing one needs the shapes of a call and nothing of its data. Dynamo knows them when it reaches the call, so the choice
is made then, in plain Python, and what dynamo goes on with is the chosen program behind a check of everything that the
choice read from objects: dynamo turns these reads into guards of its own. What the unit's Python read is the trace's
contract: it is one more guard, which dynamo asks before it runs what it has compiled.

A call that has no program here breaks the graph: the unit then looks for itself, and raises its errors, as it does where
nothing is compiled.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._dynamo.comptime import ComptimeContext, comptime
from torch._dynamo.guards import GuardBuilder, get_verbose_code_parts, install_guard
from torch._dynamo.variables import NewGlobalVariable, UserDefinedObjectVariable
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting
from torch._guards import Source
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import SUPPORTED_NODES, is_namedtuple_class

from ..capture.contract.guards import Contract
from ..capture.contract.modes import Modes
from ..capture.signature import CallSite
from ..capture.traced import Traced
from ..errors import TraceError, UnsoundPlanError, UsageError
from ..rewrite.build import Program
from ..runtime.cut.views import WholeView
from ..runtime.results.traced import closed
from .entry import EntryCode
from .live import LiveUnit

# A view of a cut parameter asks its ranks for the whole: dynamo must not look into what such a one is made of.
torch._dynamo.config.nontraceable_tensor_subclasses.add(WholeView)

# Entries by name, as attributes of a module: dynamo guards on those of its attributes that it reads, and on no others.
_entries = types.ModuleType("autotp_entries")
_choice = threading.local()
_names: dict[str, str] = {}  # of what breaks the graph, by the reason


def call_in_dynamo(unit: LiveUnit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A unit's call as dynamo traces it."""
    args = tuple([closed(value) for value in args])
    kwargs = {name: closed(value) for name, value in kwargs.items()}
    comptime(_choose)  # reads this frame's locals
    result = getattr(_entries, _chosen())(unit, args, kwargs)
    # Cut logits are no tensor here, and whatever the graph breaks for takes them for something else: hooks, checks of a type.
    return result if _stays_cut() else closed(result)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _chosen() -> str:
    """The name of the entry that was chosen just before."""
    name: str = _choice.name
    return name


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _stays_cut() -> bool:
    """Whether the unit that was reached just before may give cut logits."""
    stays: bool = _choice.stays_cut
    return stays


def _choose(context: ComptimeContext) -> None:
    """Choose, or make, the program for the call that dynamo has reached."""
    transaction = context._ComptimeContext__tx  # type: ignore[attr-defined]
    _choice.stays_cut = transaction.symbolic_locals["unit"].realize().value.may_give_cut()
    try:
        _choice.name = _entry_in(transaction)
    except (TraceError, UnsoundPlanError, UsageError) as reason:
        _choice.name = _outside(str(reason))


def _entry_in(transaction: Any) -> str:
    """The name of the entry for a call.

    Raises TraceError, UnsoundPlanError or UsageError if the compiled region cannot have it.
    """
    local = transaction.symbolic_locals
    unit_variable = local["unit"].realize()
    unit = unit_variable.value
    call = _Call(transaction)
    args, kwargs = call.value(local["args"]), call.value(local["kwargs"])
    site = unit.site(tuple(args), dict(kwargs))
    if unit.why_whole(site):
        raise TraceError(f"{unit.unit.path} runs whole")
    with torch._guards.tracing(None):
        traced, program = unit.compiler.program(unit, site, unit.positions, call.varying(site))
    if not traced.guards.hold(
        [call.fakes[id(tensor)] for tensor in site.tensors], traced.numbers(site, unit.positions)
    ):
        raise TraceError(f"{unit.unit.path} has no program for symbolic sizes")  # its guards are dynamo's from here on
    if program.writes_into_objects:
        raise TraceError(f"{unit.unit.path} writes into what an object holds")
    if traced.contract.into:
        raise TraceError(f"{unit.unit.path} writes into what it is given, and dynamo does not say what else lies there")
    read = list(traced.contract.objects_read(unit.module))
    if any(value is torch.is_inference_mode_enabled for value in read):
        raise TraceError(f"{unit.unit.path} asks for inference mode, which dynamo has turned off")
    _check_unchanged(transaction.output.side_effects, call.objects, read)
    _guard(unit_variable.source, unit, traced.contract)
    _run_on_parts(transaction.output)
    return _entry_of(unit.compiler.entries, unit.module.training, site, traced, program)


def _run_on_parts(output: Any) -> None:
    """Have the graph that dynamo makes compute on parts of cut parameters where it runs, as it was traced on parts."""
    if hasattr(output, "torch_function_subclass_inlined"):
        output.torch_function_subclass_inlined = True
    elif not isinstance(output.compiler_fn, _OnParts):  # torch 2.11 has no such switch
        output.compiler_fn = _OnParts(output.compiler_fn)


@dataclass(frozen=True)
class _OnParts:
    """A compiler whose graphs find cut parameters as their parts."""

    compiler: Callable[..., Any]

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Callable[..., Any]:
        compiled = self.compiler(graph, inputs, **options)

        def run(*args: Any) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                return compiled(*args)

        return run


def _outside(reason: str) -> str:
    """The name of what breaks the graph, and says why: a unit's call as it is where nothing is compiled."""
    if reason not in _names:
        _names[reason] = f"outside_{len(_names)}"
        setattr(_entries, _names[reason], torch._dynamo.disable(_call_eagerly, reason=reason))
    return _names[reason]


def _call_eagerly(unit: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return unit(*args, **kwargs)


def _guard(source: Source | None, unit: Any, contract: Contract) -> None:
    """Have dynamo ask, at each call of what it compiles, whether a unit is still one that the chosen program is for."""
    if source is None:
        raise TraceError(f"{unit.unit.path} is made within the compiled region")
    kind, path, compiler = type(unit), unit.unit.path, weakref.ref(unit.compiler)  # the guard keeps no model alive

    def add(builder: Any, guard: Any) -> None:
        # The compiled region may enter others before it comes to the unit; dynamo has turned inference mode off.
        at_begin = replace(contract, modes=Modes(inference=None))

        def holds(now: Any) -> bool:
            if type(now) is not kind or now.compiler is not compiler():
                return False
            # Dynamo has disabled it, and cut parameters say what they are by it.
            with torch._C._EnableTorchFunction():
                return bool(now.is_as_known() and now.holds(at_begin))

        text = get_verbose_code_parts(f"autotp: what {path} leans on is as it was", guard)
        builder.get_guard_manager(guard).add_lambda_guard(holds, text, guard.user_stack)

    install_guard(source.make_guard(add))


def _check_unchanged(effects: Any, given: Sequence[Source], read: Iterable[Any]) -> None:
    """Raises TraceError if the compiled region changes what was `read` before it comes to a call: dynamo does so when the region
    ends, and a unit's Python would find it as it was. Objects in the call, `given`, are looked at as they will be."""
    known = {id(variable): number for number, variable in effects.id_to_variable.items()}
    looked_at = {id(value) for value in read}
    for variable in effects._get_modified_vars():
        if not isinstance(variable.mutation_type, (AttributeMutationExisting, ValueMutationExisting)):
            continue
        is_global = isinstance(variable, NewGlobalVariable)  # whose number is that of nothing
        unread = not is_global and id(variable) in known and known[id(variable)] not in looked_at
        if not unread and not any(source in given for source in _holders(variable.source)):
            raise TraceError(f"the compiled region changes {variable.source.name if variable.source else variable}")


def _holders(source: Source | None) -> Iterator[Source]:
    """A place, and those that it is in."""
    while source is not None:
        yield source
        source = getattr(source, "base", None)


class _Call:
    """The arguments of a call that dynamo traces, as values that only have shapes."""

    def __init__(self, transaction: Any) -> None:
        self.transaction = transaction
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.fakes: dict[int, torch.Tensor] = {}
        self.owns: dict[int, torch.Tensor] = {}  # the other way round
        self.objects: list[Source] = []  # where those are that the call holds

    def value(self, variable: Any) -> Any:
        """What a variable of dynamo's stands for. Raises TraceError for what is made within the compiled region only."""
        variable = variable.realize()
        kind = type(variable).__name__
        if variable.is_tensor() and variable.python_type() in (torch.Tensor, torch.nn.Parameter):
            return self._tensor(variable.as_proxy().node.meta["example_value"])
        if kind == "SymNodeVariable":
            return int(variable.sym_num.node.hint)
        if variable.is_tensor():
            raise TraceError(f"a {variable.python_type().__name__} in the call of a block cannot be compiled")
        if isinstance(variable, UserDefinedObjectVariable) and _is_container(made := variable.python_type()):
            raise TraceError(f"a {made.__name__} in the call of a block cannot be compiled")
        if callable(held := _held(variable)) and not isinstance(held, type):
            return self._callable(variable, held)
        if variable.is_python_constant():
            return variable.as_python_constant()
        if hasattr(variable, "items") and isinstance(variable.items, list):
            made, items = variable.python_type(), [self.value(item) for item in variable.items]
            return made(*items) if is_namedtuple_class(made) else made(items)
        if hasattr(variable, "items") and isinstance(variable.items, dict):
            return {key.vt.as_python_constant(): self.value(item) for key, item in variable.items.items()}
        if hasattr(variable, "value") and not isinstance(variable.value, WholeView):
            return self._object(variable)
        raise TraceError(f"a {kind} in the call of a block cannot be compiled")

    def _callable(self, variable: Any, held: Any) -> Any:
        """A function, or what is called like one. A program is for this one alone."""
        if variable.source is None:
            raise TraceError("a function that is made within the compiled region is in the call of a block")
        install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))
        return held

    def _object(self, variable: Any) -> Any:
        """An object as it was before the compiled region, or as the region has made it so far."""
        if variable.source is not None:
            self.objects.append(variable.source)
        changes = self.transaction.output.side_effects.store_attr_mutations.get(variable)
        if variable.source is not None or not changes:
            return variable.value
        made = object.__new__(type(variable.value))
        for name, part in changes.items():
            object.__setattr__(made, name, self.value(part))
        return made

    def _tensor(self, fake: torch.Tensor) -> torch.Tensor:
        if id(fake) in self.owns:  # one tensor at two places is one
            return self.owns[id(fake)]
        with self.mode, torch.no_grad():
            sizes = [_hint(size) for size in fake.shape]
            own = torch.empty_strided(sizes, [_hint(s) for s in fake.stride()], dtype=fake.dtype, device=fake.device)
        own.requires_grad_(fake.requires_grad)
        self.fakes[id(own)], self.owns[id(fake)] = fake, own
        return own

    def varying(self, site: CallSite) -> frozenset[tuple[int, int]]:
        """The dims (tensor, dim) of a call that are symbols to dynamo."""
        return frozenset(
            (number, dim)
            for number, tensor in enumerate(site.tensors)
            for dim, size in enumerate(tuple[Any, ...](self.fakes[id(tensor)].shape))
            if isinstance(size, torch.SymInt)
        )


def _held(variable: Any) -> Any:
    """The object that a variable stands for, None if it is none that was there before the region."""
    if isinstance(variable, UserDefinedObjectVariable):
        return variable.value
    return variable.as_python_constant() if variable.is_python_constant() else None


def _is_container(kind: type) -> bool:
    """Returns if an object of this class has items and is more than they are, or is guarded by dynamo for its keys alone."""
    return bool(kind.__dictoffset__) if is_namedtuple_class(kind) else kind in SUPPORTED_NODES


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _entry_of(entries: dict[Any, str], training: bool, site: CallSite, traced: Traced, program: Program) -> str:
    """The name of the entry for a program and a kind of call; made at its first use."""
    key = (id(program), site.spec)
    if key not in entries:
        entries[key] = f"entry_{len(vars(_entries))}"
        setattr(_entries, entries[key], EntryCode(site, traced, program).in_graph(training))
    return entries[key]
