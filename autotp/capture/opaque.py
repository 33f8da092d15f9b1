"""Opaque handles: Python objects in a unit's call (a KV cache) that are not traced but called for real at run time.

While tracing, a stand-in takes the object's place. What the block reads from it (attributes, methods that return no
tensor) becomes a condition checked before the program runs; a method that takes or gives tensors becomes one node. Its
result shapes come from running the real method on a copy of the object that holds fake tensors.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ..errors import TraceError
from .symbols import Symbols

CONSTANTS = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device)

READ = "__getattribute__"  # the method by which a tensor is read from an object


class Position:
    """Stands for a unit's place among its siblings while tracing. Passed to an opaque method it stays a variable;
    used in any other way it is the number it stands for, and `used` says that the trace holds for that number only."""

    def __init__(self, value: int, number: int) -> None:
        self.value, self.number, self.used = value, number, False

    def __index__(self) -> int:
        self.used = True
        return self.value


def _delegate(name: str) -> Any:
    def method(self: Position, *others: Any) -> Any:
        return getattr(operator_index(self), name)(*map(operator_value, others))

    return method


def operator_index(value: Position) -> int:
    return value.__index__()


def operator_value(value: Any) -> Any:
    return value.__index__() if isinstance(value, Position) else value


for _name in (
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __bool__ __int__ __float__ __str__ __repr__ __format__ __neg__ __abs__ "
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ "
    "__rmod__ __pow__ __rpow__ __and__ __rand__ __or__ __ror__ __lshift__ __rshift__ __divmod__"
).split():
    setattr(Position, _name, _delegate(_name))


@dataclass(frozen=True)
class HandleGuard:
    """What a block read from a handle: the way to it, the arguments of the last step if it is a call, and the value.

    One that is `late` was read after the block itself had changed the object: no look before the block can tell it.
    """

    handle: int
    path: tuple[tuple[str, Any], ...]
    value: Any
    late: bool = False

    def holds(self, handles: list[Any], positions: tuple[int, ...]) -> bool:
        """Returns if reading it again gives the same value."""
        return not self.late and bool(follow(handles[self.handle], self.path, positions) == self.value)


@dataclass
class OpaqueCall:
    """One method call that becomes a node: its tensors are the node's operands, in the order of the flat arguments."""

    handle: int
    path: tuple[tuple[str, Any], ...]
    leaves: list[Any]
    spec: pytree.TreeSpec
    bound: Any
    out_spec: pytree.TreeSpec | None = None
    out_constants: dict[int, Any] = field(default_factory=dict)


class Handles:
    """All handles of one trace, with what was read from and called on them.

    `widths` are the middle dims (heads) of the whole value, of which a rank's objects hold parts, by the part's shape.
    """

    def __init__(self, symbols: Symbols, widths: Widths | None = None) -> None:
        self.symbols, self.widths = symbols, widths or {}
        self.copies: list[Any] = []
        self.before: list[Any] = []
        self.guards: list[HandleGuard] = []
        self.calls: list[OpaqueCall] = []
        self._memo: dict[int, Any] = {}

    def stand_in(self, real: Any) -> Any:
        """A stand-in for an object of the call."""
        self.before.append(copy_opaque(real, self.symbols.tensor))
        self.copies.append(copy_opaque(real, self.symbols.tensor, self._memo))
        return StandIn(self, len(self.copies) - 1, (), self.copies[-1])

    def read(self, handle: int, path: tuple[tuple[str, Any], ...], value: Any) -> Any:
        """Handle what following a path gave: a constant is guarded, a tensor read for real, anything else stays opaque."""
        if isinstance(value, CONSTANTS):
            self.guards.append(HandleGuard(handle, path, value, self._changed(handle, path, value)))
            return value
        if isinstance(value, torch.Tensor):
            *way, (kind, step) = path
            args, kwargs = ((step,), {}) if kind == "." else step
            way = [*way, (".", READ)] if kind == "." else way
            return self.call(handle, tuple(way), lambda *_, **__: value, args, kwargs)
        return StandIn(self, handle, path, value)

    def _changed(self, handle: int, path: tuple[tuple[str, Any], ...], value: Any) -> bool:
        """Returns if a read value is not the one from before the block's own calls."""
        if not any(call.handle == handle for call in self.calls):
            return False
        try:
            return bool(follow(self.before[handle], path, None) != value)
        except (AttributeError, LookupError):
            return True

    def invoke(self, handle: int, path: tuple[tuple[str, Any], ...], bound: Any, args: Any, kwargs: Any) -> Any:
        """Call a method: as a node if tensors go in or come out, else as a guarded constant."""
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
            return self.call(handle, path, bound, args, kwargs)
        return self.read(handle, (*path, ("()", (args, kwargs))), bound(*_plain(args), **_plain(kwargs)))

    def call(self, handle: int, path: tuple[tuple[str, Any], ...], bound: Any, args: Any, kwargs: Any) -> Any:
        """Call a method as a node."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        call = OpaqueCall(handle, path, leaves, spec, bound)
        self.calls.append(call)
        results = iter(torch.ops.autotp.opaque(tensors, _register(self, len(self.calls) - 1)))
        assert call.out_spec is not None
        flat = [
            call.out_constants[number] if number in call.out_constants else next(results)
            for number in range(call.out_spec.num_leaves)
        ]
        return pytree.tree_unflatten(flat, call.out_spec)

    def run(self, number: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run a recorded call on the fake copy; every size that is not fixed becomes a symbol of its own.

        The object may hold a rank's slices already (a cache in use), where the graph is traced with whole values: the
        call then runs on operands as wide as what it holds, and the results are widened again.
        """
        call = self.calls[number]
        state = [tensor for tensor in _tensors_of(self.copies[call.handle], set()) if tensor.numel()]
        width = {tensor.dim(): tuple(tensor.shape[1:-2]) for tensor in tensors if tensor.dim() > 2}
        remaining = iter([_as_wide_as(state, tensor) for tensor in tensors])
        leaves = [next(remaining) if isinstance(leaf, torch.Tensor) else operator_value(leaf) for leaf in call.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, call.spec)
        flat, call.out_spec = pytree.tree_flatten(call.bound(*args, **kwargs))
        call.out_constants = {i: leaf for i, leaf in enumerate(flat) if not isinstance(leaf, torch.Tensor)}
        results = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        return [
            self._renewed(leaf, width[leaf.dim()] if leaf.dim() in width else self._width(leaf)) for leaf in results
        ]

    def _width(self, held: torch.Tensor) -> tuple[int, ...]:
        """The whole middle dims of a tensor that an object holds."""
        wholes = self.widths.get(width_key(held.shape), {tuple(held.shape[1:-2])})
        if len(wholes) > 1:
            raise TraceError(f"a tensor of shape {tuple(held.shape)} in an argument may be a part of {sorted(wholes)}")
        return next(iter(wholes))

    def _renewed(self, result: torch.Tensor, width: tuple[int, ...]) -> torch.Tensor:
        if result.dim() < 2:
            return torch.empty_like(result)
        batch, *_, length, last = result.shape if result.dim() > 2 else (1, 1, *result.shape)
        # A cache that gives one position now gives more the next time, to a call that looks the same.
        sizes = [batch, *width, self.symbols.size(max(_hint(length), 2)), last]
        return torch.empty(sizes[-result.dim() :], dtype=result.dtype, device=result.device)


# Whole middle dims by what a rank holds: the number of dims, the part's middle dims, the last dim.
Widths: TypeAlias = dict[tuple[int, tuple[int, ...], int], set[tuple[int, ...]]]


def width_key(shape: Sequence[int]) -> tuple[int, tuple[int, ...], int]:
    """Under what the whole of a part is kept: batch and length do not matter."""
    return len(shape), tuple(shape[1:-2]), int(shape[-1]) if shape else 0


def _as_wide_as(state: list[torch.Tensor], operand: torch.Tensor) -> torch.Tensor:
    """An operand with the middle dims (heads) that tensors of its rank and last dim have in the object's state."""
    like = [t for t in state if t.dim() == operand.dim() > 2 and t.shape[-1] == operand.shape[-1]]
    if not like or like[0].shape[1:-2] == operand.shape[1:-2]:
        return operand
    return operand.new_empty((operand.shape[0], *like[0].shape[1:-2], *operand.shape[-2:]))


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


class StandIn:
    """Takes an object's place while tracing; says it is of the object's class."""

    def __init__(self, handles: Handles, handle: int, path: tuple[tuple[str, Any], ...], value: Any) -> None:
        object.__setattr__(self, "_stand_in", (handles, handle, path, value))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(object.__getattribute__(self, "_stand_in")[3])

    def __getattr__(self, name: str) -> Any:
        handles, handle, path, value = object.__getattribute__(self, "_stand_in")
        return handles.read(handle, (*path, (".", name)), getattr(value, name))

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__("__getitem__")(key)

    def __len__(self) -> int:
        return int(self.__getattr__("__len__")())

    def __contains__(self, key: Any) -> bool:
        return bool(self.__getattr__("__contains__")(key))

    def __bool__(self) -> bool:
        return True

    def __setattr__(self, name: str, _: Any) -> None:
        raise TraceError(f"the block sets the attribute {name!r} of an argument of type {self.__class__.__name__}")

    def __setitem__(self, key: Any, item: Any) -> None:
        handles, handle, path, value = object.__getattribute__(self, "_stand_in")
        handles.call(handle, (*path, (".", "__setitem__")), value.__setitem__, (key, item), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        handles, handle, path, value = object.__getattribute__(self, "_stand_in")
        return handles.invoke(handle, path, value, args, kwargs)


def handle_number(value: Any) -> int | None:
    """The number of the handle a stand-in (not a part of it) stands for, None for anything else."""
    if type(value) is not StandIn:
        return None
    _, handle, path, _ = object.__getattribute__(value, "_stand_in")
    return None if path else int(handle)


def follow(value: Any, path: tuple[tuple[str, Any], ...], positions: Sequence[int] | None) -> Any:
    """Read an attribute, or call a method, of an object along a recorded path."""
    for kind, step in path:
        if kind == ".":
            value = getattr(value, step)
        else:
            args, kwargs = _plain(step, positions)
            value = value(*args, **kwargs)
    return value


def _plain(tree: Any, positions: Sequence[int] | None = None) -> Any:
    """Arguments with positions replaced by numbers: the given ones, or those they stood for while tracing."""

    def value(leaf: Any) -> Any:
        if isinstance(leaf, Position):
            return leaf.value if positions is None else positions[leaf.number]
        return leaf

    return pytree.tree_map(value, tree, is_leaf=lambda leaf: isinstance(leaf, Position))


def _tensors_of(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(value) in seen or isinstance(value, (*CONSTANTS, type)):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors_of(part, seen)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from _tensors_of(part, seen)
    elif hasattr(value, "__dict__"):
        yield from _tensors_of(vars(value), seen)


def copy_opaque(
    tree: Any,
    tensor: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    memo: dict[int, Any] | None = None,
) -> Any:
    """Arguments of a call with every Python object in them copied, so that the call can change it; tensors are replaced.

    Raises TraceError for an object that cannot be copied.
    """
    known: dict[int, Any] = {} if memo is None else memo

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return tensor(leaf)
        if isinstance(leaf, (*CONSTANTS, type)) or callable(leaf):
            return leaf
        for part in _tensors_of(leaf, set()):
            if id(part) not in known:
                known[id(part)] = tensor(part)
        try:
            return copy.deepcopy(leaf, known)
        except Exception as error:
            raise TraceError(f"an argument of type {type(leaf).__name__} can be neither traced nor copied") from error

    return pytree.tree_map(copied, tree, is_leaf=lambda value: not isinstance(value, (list, tuple, dict)))


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
def _opaque(tensors: list[torch.Tensor], token: int) -> list[torch.Tensor]:
    raise TraceError("an opaque call runs for real only inside a program")


@_opaque.register_fake
def _(tensors: list[torch.Tensor], token: int) -> list[torch.Tensor]:
    handles, number = _pending[token]
    return handles.run(number, tensors)


torch.fx.node.has_side_effect(torch.ops.autotp.opaque.default)
