"""Handles: opaque objects of a unit's call while it is traced, and what the unit reads from and does to them.

While tracing, a stand-in takes the object's place. What the block reads from it (attributes, methods that return no
tensor) becomes a condition checked before the program runs, or a number that is an input of the program where it is
known to vary. A method that takes or gives tensors, or that changes the object, becomes one node. Its result shapes
come from running the real method on a copy of the object that holds fake tensors.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..axes.record import Operator
from ..axes.signature import Signature
from ..errors import TraceError
from .calls import OpaqueCall, call_opaque, check_opaque, read_differentiable, read_number, read_opaque
from .opaque import (
    Path,
    Widths,
    copy_opaque,
    with_positions,
)
from .owners import package_of, packages_within
from .reads import HandleGuard, HandleRead
from .stand_in import stand_in
from .state import CONSTANTS, runs_code, state_of
from .symbols import Symbols


class Handles:
    """All handles of one trace, with what was read from and done to them.

    `rules` tell of methods; `varying` are the names of reads that are numbers known to vary, with the symbolic numbers they are
    in this trace.
    """

    def __init__(self, symbols: Symbols, module: nn.Module, widths: Widths, rules: Mapping[str, Operator]) -> None:
        self.symbols, self.widths, self.rules = symbols, widths, rules
        self.varying: dict[str, Any] = {}
        self.guards: list[HandleGuard] = []
        self.calls: list[OpaqueCall] = []
        self.paths = {id(part): path for path, part in module.named_modules()}
        self._copies: list[Any] = []
        self._changed: set[int] = set()
        self._memo: dict[int, Any] = {}
        self.observer: Any = None
        self.problem: str | None = None  # why there is no program, even if the block's Python catches the error

    def refuse(self, problem: str) -> TraceError:
        """The error that says why there is no program; to be raised."""
        self.problem = self.problem or problem
        return TraceError(problem)

    def told(self, kind: type) -> None:
        """The traced code gets the class of an object, and may read what that has."""
        if self.observer is not None:
            self.observer.told(kind)

    def stand_in(self, real: Any) -> Any:
        """A stand-in for an object of the call."""
        self._copies.append(copy_opaque(real, self._whole, self._memo))
        return stand_in(self, len(self._copies) - 1, (), self._copies[-1])

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        own = tuple(tensor.shape)
        whole = own if getattr(tensor, "autotp_is_whole", False) else self.widths.whole(own)
        if whole == own:
            return self.symbols.tensor(tensor).requires_grad_(tensor.requires_grad)
        with self.symbols.mode, torch.no_grad():
            empty = torch.empty(whole, dtype=tensor.dtype, device=tensor.device)
        return empty.requires_grad_(tensor.requires_grad)

    def read(self, handle: int, path: Path, value: Any) -> Any:
        """What following a path gave: a constant is guarded, a tensor is a node, anything else stays opaque."""
        if isinstance(value, (*CONSTANTS, torch.SymInt)):
            return self.constant(HandleRead(handle, path), value)
        if isinstance(value, torch.Tensor):
            return self._fetch(handle, path, value)
        if type(value) is object:
            raise self.refuse("it gets an object from another that nothing but which one it is can be asked of")
        if handle not in self._changed and not isinstance(value, _METHODS):
            self._guard(HandleRead(handle, (*path, ("type", ""))), type(value))
        if self.observer is not None:
            self.observer.given(type(value))
        return stand_in(self, handle, path, value)

    def attribute(self, handle: int, path: Path, value: Any, name: str) -> Any:
        """An attribute of an object, or that it has none of this name."""
        kind: type = type(value)
        before = state_of(self._copies[handle]) if runs_code(kind, name) else None
        try:
            found = getattr(value, name)
        except AttributeError:
            self.constant(HandleRead(handle, (*path, ("has", name))), False)
            raise
        except Exception as error:
            raise self.refuse(f"{name} of a {type(value).__name__} raises an error in a trace: {error}") from error
        if before is not None and state_of(self._copies[handle]) != before:
            raise self.refuse(f"reading {name} of a {type(value).__name__} changes what it is read from")
        return self.read(handle, (*path, (".", name)), found)

    def _guard(self, read: HandleRead, value: Any, varies: bool = False) -> None:
        guard = HandleGuard(read, value, varies)
        if guard not in self.guards:
            self.guards.append(guard)

    def constant(self, read: HandleRead, value: Any, exact: bool = False) -> Any:
        if read.handle in self._changed:
            # A condition on the object as it is before the program cannot say what is read after a change.
            if not exact and (isinstance(value, torch.SymInt) or type(value) is int):
                self.calls.append(self._reading(read_number, read.handle, read.path, value))
                return torch.ops.autotp.opaque_number(_register(self, len(self.calls) - 1))
            if isinstance(value, float):
                raise self.refuse("it reads a number with a fraction from an object that it has changed")
            return self._node(self._reading(check_opaque, read.handle, read.path, value))
        if read.name in self.varying:
            return self.varying[read.name]
        if hasattr(value, "__dict__") and not isinstance(value, Enum):
            raise self.refuse(f"it reads a {type(value).__name__} from an object, a constant that may have attributes")
        self._guard(read, value, True)
        return value

    def _fetch(self, handle: int, path: Path, value: Any) -> Any:
        wanted = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(value))
        # An item is there because a block set it, which tells that block of a gradient from outside. Of a tensor that a
        # method has kept nobody tells.
        item = len(path) == 2 and path[0] == (".", "__getitem__") and handle not in self._changed
        wanted &= torch.is_grad_enabled()
        call = self._reading(read_differentiable if wanted and item else read_opaque, handle, path, value)
        call.gradient = wanted or (
            torch.is_grad_enabled() and handle in self._changed
        )  # of which no condition can be made
        if call.target is read_opaque and handle not in self._changed and isinstance(value, torch.Tensor):
            self.constant(HandleRead(handle, (*path, (".", "requires_grad"))), value.requires_grad)
        if handle not in self._changed and isinstance(value, torch.Tensor):
            self._guard_looks(handle, path, value)
        return self._node(call)

    def _guard_looks(self, handle: int, path: Path, value: torch.Tensor) -> None:
        """Guard what a block may ask a tensor for, and the sizes that are constants in a trace."""
        self._guard(HandleRead(handle, (*path, (".", "dtype"))), value.dtype)
        self._guard(HandleRead(handle, (*path, (".", "dim"), ("()", ((), {})))), value.dim())
        if self.widths.is_slice_of(tuple(value.shape)):
            return  # of a size that a rank's slice does not have
        for dim, size in enumerate(value.shape):
            if value.dim() == 1 or dim != value.dim() - 2:
                item: Path = (".", "shape"), (".", "__getitem__"), ("()", ((dim,), {}))
                self._guard(HandleRead(handle, (*path, *item)), _hint(size))

    def _reading(self, target: Any, handle: int, path: Path, value: Any) -> OpaqueCall:
        leaves, spec = pytree.tree_flatten(((), {}))
        return OpaqueCall("read", target, leaves, spec, lambda: value, handle, path)

    def invoke(self, handle: int, path: Path, bound: Any, args: Any, kwargs: Any) -> Any:
        """Call a method: as a node if tensors go in or come out or the object changes, else as a guarded constant."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        packages = package_of(bound), packages_within(self._copies[handle])
        call = OpaqueCall(str(path[-1][1]), call_opaque, leaves, spec, bound, handle, path, *packages)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return self._change(call)
        call.gradient = torch.is_grad_enabled()  # of what it gives, which no tensor of this call says
        before = state_of(self._copies[handle])
        try:
            value = bound(*with_positions(args), **with_positions(kwargs))
        except TraceError:
            raise
        except Exception as error:
            raise self.refuse(f"{call.name} of an object raises an error in a trace: {error}") from error
        if state_of(self._copies[handle]) != before:
            call.bound = lambda *args, **kwargs: value  # it has run
            return self._change(call)
        step = (*path, ("()", (args, kwargs)))
        tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        return self._fetch(handle, step, value) if tensors else self.read(handle, step, value)

    def _change(self, call: OpaqueCall) -> Any:
        assert call.handle is not None
        self._changed.add(call.handle)
        return self._node(call)

    def call_function(self, name: str, function: Any, fake: Any, args: Any, kwargs: Any) -> Any:
        """A function that stays opaque, as a node; `fake` gives its result's shapes."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        for leaf in leaves:
            if getattr(leaf, "__closure__", None) or (isinstance(leaf, types.MethodType) and leaf.__self__ is not None):
                raise self.refuse(f"it gives {function.__name__} a function that holds what is the trace's own")
        return self._node(OpaqueCall(name, function, leaves, spec, fake))

    def _node(self, call: OpaqueCall) -> Any:
        self.calls.append(call)
        tensors = [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
        numbers = [leaf for leaf in call.leaves if isinstance(leaf, torch.SymInt)]
        results = iter(torch.ops.autotp.opaque(tensors, numbers, _register(self, len(self.calls) - 1)))
        assert call.out_spec is not None
        flat = [
            call.out_constants[number] if number in call.out_constants else next(results)
            for number in range(call.out_spec.num_leaves)
        ]
        return pytree.tree_unflatten(flat, call.out_spec)

    def run(self, number: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run a recorded call on the fake copy; every length that is not fixed becomes a symbol of its own."""
        call = self.calls[number]
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
        args, kwargs = with_positions(pytree.tree_unflatten(leaves, call.spec))
        flat, call.out_spec = pytree.tree_flatten(call.bound(*args, **kwargs))
        call.out_constants = {i: leaf for i, leaf in enumerate(flat) if not isinstance(leaf, torch.Tensor)}
        given = next((leaf for leaf in call.out_constants.values() if leaf is not None), None)
        if call.target is call_opaque and given is not None:
            raise self.refuse(
                f"{call.name} of an object gives a {type(given).__name__}, which is known only when it runs"
            )
        results = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        if call.handle is None:
            return results
        if tensors and results and max(map(_rows, results)) < max(map(_rows, tensors)):
            raise TraceError(f"{call.name} of an object keeps rows back, and may give none at all at the next call")
        return [self._renewed(leaf, self._keeps_rows(call, place)) for place, leaf in enumerate(results)]

    def _keeps_rows(self, call: OpaqueCall, place: int) -> bool:
        """Returns if a rule says that a method's result has as many rows as what it is given."""
        known = self.rules.get(f"opaque.{call.name}")
        rule = known.rule if known is not None else None
        return isinstance(rule, Signature) and rule.is_for(call.owner, call.holding) and rule.is_of_operand(place, -2)

    def _renewed(self, result: torch.Tensor, keeps_rows: bool) -> torch.Tensor:
        sizes = list(result.shape)
        if len(sizes) > 1 and not (keeps_rows and isinstance(sizes[-2], int)):
            # Even where it is one now: the object may have grown before the next call.
            sizes[-2] = self.symbols.size(max(2, _hint(sizes[-2])))
        return torch.empty(sizes, dtype=result.dtype, device=result.device)


_METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def _rows(tensor: torch.Tensor) -> int:
    return _hint(tensor.shape[-2]) if tensor.dim() > 1 else 0


# The operator that a traced call appears as. Its `token` finds the call again; tokens live only while a trace runs.
_pending: dict[int, tuple[Handles, int]] = {}
_tokens = itertools.count()


def _register(handles: Handles, number: int) -> int:
    token = next(_tokens)
    _pending[token] = (handles, number)
    return token


def release(handles: Handles) -> None:
    """Forget the tokens of a trace that has ended."""
    for token in [token for token, (owner, _) in _pending.items() if owner is handles]:
        del _pending[token]


def pending_call(token: int) -> tuple[Handles, int]:
    """The handles and the call number of a traced call."""
    return _pending[token]


@torch.library.custom_op("autotp::opaque", mutates_args=())
def _opaque(tensors: list[torch.Tensor], numbers: list[int], token: int) -> list[torch.Tensor]:
    raise TraceError("an opaque call runs for real only inside a program")


@_opaque.register_fake
def _(tensors: list[torch.Tensor], numbers: list[int], token: int) -> list[torch.Tensor]:
    handles, number = _pending[token]
    return handles.run(number, tensors)


@torch.library.custom_op("autotp::opaque_number", mutates_args=())
def _opaque_number(token: int) -> int:
    raise TraceError("an opaque number is read for real only inside a program")


@_opaque_number.register_fake
def _(token: int) -> Any:
    handles, number = _pending[token]
    return handles.symbols.read(_hint(handles.calls[number].bound()))


OPAQUE, OPAQUE_NUMBER = torch.ops.autotp.opaque.default, torch.ops.autotp.opaque_number.default
torch.fx.node.has_side_effect(OPAQUE)
