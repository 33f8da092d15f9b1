"""A tensor of which this rank holds a part, in the place of the whole: whatever is asked of it is asked of the whole.

How it is cut, what is computed on parts, and what a model returns in its place: all that its policy says.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...errors import UsageError
from ..collectives.single import is_recorded
from ..cut.operands import computes_itself
from ..cut.origin import IsCut
from ..cut.patched import meant
from ..cut.views import WholeView
from .memory import Memory, Way, along

T = torch.Tensor
aten = torch.ops.aten
MSG_SHAPE = (
    "{what} would change the shape of a value that is cut over ranks in place; write it without the underscore, and go on with"
    " what it gives"
)
MSG_DATA = (
    ".data of a value that is cut over ranks, of shape {shape} and {dtype}, was set to a tensor of another kind; go on with that"
    " tensor itself"
)
_ALIASES = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default})


class Policy:
    """How one kind of cut tensor is used. A method that has nothing to say returns NotImplemented: then the whole is used."""

    taken_cut = False  # whether units may be given it as it is

    def gathered(self, local: torch.Tensor) -> torch.Tensor:
        """The whole of a part, by collectives that all ranks reach together."""
        raise NotImplementedError

    def own_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """This rank's part of a gradient of the whole."""
        raise NotImplementedError

    def of_part(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the whole, cut as it is, of which a tensor is this rank's part."""
        raise NotImplementedError

    def on_parts(self, cut: Sequence[CutResult], func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of a function of torch's for these cut tensors among its arguments."""
        return NotImplemented

    def on_part(self, func: Any, args: Any) -> Any:
        """The result of an operator below autograd for arguments of which some are cut."""
        return NotImplemented

    def settled(self, value: CutResult) -> torch.Tensor:
        """What a model returns in its place."""
        return gathered(value)


class CutResult(torch.Tensor):
    """A value of which this rank holds `local`. It has the shape of the whole, and the history of what it stands for.

    What is computed on the part has its history through this tensor (`part_of`), so hooks on it, and backwards to it, see what
    they do in the dense model.
    """

    local: torch.Tensor
    policy: Policy
    memory: Memory
    way: Way
    _read: torch.Tensor | None
    goes_on = False  # whether its unit computes with it, too
    autotp_is_whole = True  # what it says of itself is true of a whole

    @staticmethod
    def of(local: torch.Tensor, shape: Sequence[int], policy: Policy) -> CutResult:
        """One without history, of a whole of this shape."""
        made: CutResult = torch.Tensor._make_wrapper_subclass(CutResult, shape, dtype=local.dtype, device=local.device)
        made.__dict__.update(local=local, policy=policy, memory=Memory(local, policy), way=(), _read=None)
        return made

    def view_of(self, local: torch.Tensor, like: torch.Tensor, *step: tuple[Any, tuple[Any, ...]]) -> CutResult:
        """One that has the memory of this one, and the shape and strides of another tensor."""
        made: CutResult = torch.Tensor._make_wrapper_subclass(
            CutResult,
            like.shape,
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=local.dtype,
            device=local.device,
        )
        made.__dict__.update(local=local, policy=self.policy, memory=self.memory, way=(*self.way, *step), _read=None)
        return made

    @property
    def is_settled(self) -> bool:
        """Whether somebody may have written into the whole, so that the part is no longer it."""
        return self.memory.is_settled

    @property
    def is_whole(self) -> bool:
        """Whether somebody has needed it whole."""
        return self._read is not None or self.memory.whole is not None or self.memory.is_settled

    def whole(self) -> torch.Tensor:
        """The whole without history to read from, gathered at the first use; all ranks must come here together.

        Of a view no more than that is gathered, unless there is little more, or the second view is asked for.
        """
        if self._read is not None and not self.memory.is_settled:
            return self._read
        if self.way and self.memory.is_to_be_gathered_in_part():
            with torch.no_grad():
                self._read = self.policy.gathered(self.local)
            return self._read
        whole = self.memory.gather()
        return along(self.way, whole) if self.way else whole

    def shared(self) -> torch.Tensor:
        """The whole without history to write into: all that has this memory hears of it."""
        return along(self.way, self.memory.settle())

    def handed_on(self) -> torch.Tensor:
        """The whole without history for code that knows of no cut tensors."""
        return self.memory.hand_on(self.whole(), self.way)

    def take_memory_of(self, other: torch.Tensor) -> None:
        """Have another tensor's values and memory from now on, as an assignment to `.data` says."""
        if other.shape != self.shape or other.dtype != self.dtype or other.device != self.device:
            raise UsageError(MSG_DATA.format(shape=tuple(self.shape), dtype=self.dtype))
        if isinstance(other, CutResult):
            given = {name: other.__dict__[name] for name in ("local", "policy", "memory", "way", "_read")}
        else:
            given = {"memory": Memory.of_whole(other.detach(), self.policy), "way": (), "_read": None}
        self.__dict__.update(given)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        kind = type(self.policy).__name__
        return f"CutResult({tuple(self.shape)}, local {tuple(self.local.shape)}, {self.dtype}, {kind})"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(closed(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return closed(self).__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, (IsCut, WholeView)) or computes_itself(kind) for kind in types):
            return NotImplemented  # a cut parameter makes it whole first, and somebody's class computes itself
        func = meant(func)
        cut = _cut_among((*args, *kwargs.values()))
        with torch._C.DisableTorchFunctionSubclass():
            if func in _OF_MEMORY:
                return _OF_MEMORY[func](func, *args, **kwargs)
            for policy in dict.fromkeys(each.policy for each in cut):
                result = policy.on_parts(cut, func, args, kwargs)
                if result is not NotImplemented:
                    return result
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        with torch._C.DisableTorchFunctionSubclass():
            cut = next((arg for arg in args if isinstance(arg, CutResult)), None)
            if cut is not None:
                if func in _ALIASES and cut is args[0]:
                    return cut.view_of(cut.local, cut)
                result = cut.policy.on_part(func, args)
                if result is not NotImplemented:
                    return result
            if torch.Tag.inplace_view in func.tags and isinstance(args[0], CutResult):
                raise UsageError(MSG_SHAPE.format(what=func._schema.name.rpartition("::")[2]))
            return _on_wholes(func, args, kwargs or {})


def _cut_among(values: Sequence[Any]) -> list[CutResult]:
    if any(isinstance(value, (tuple, list, dict)) for value in values):
        values = pytree.tree_leaves(values)
    return [value for value in values if isinstance(value, CutResult)]


def _on_wholes(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The result of an operator below autograd for wholes; into the memory of some it writes, or gives views of it."""
    shared = [args[i] if i < len(args) else kwargs.get(name) for i, name in _sharing(func)]
    owners: dict[int, CutResult] = {}
    for leaf in pytree.tree_leaves(shared):
        if isinstance(leaf, CutResult):
            owners[id(leaf)] = leaf
    made = {key: leaf.shared() for key, leaf in owners.items()}
    args, kwargs = pytree.tree_map_only(
        CutResult, lambda leaf: made[id(leaf)] if id(leaf) in made else leaf.whole(), (args, kwargs)
    )
    result = func(*args, **kwargs)
    if made and func._schema.is_mutable:  # what it has written into is given back
        written = {id(plain): owners[key] for key, plain in made.items()}
        return pytree.tree_map(lambda leaf: written.get(id(leaf), leaf), result)
    return result


@functools.cache
def _sharing(func: Any) -> tuple[tuple[int, str], ...]:
    """The arguments of an operator into which it writes, or of which it gives views."""
    return tuple((i, each.name) for i, each in enumerate(func._schema.arguments) if each.alias_info is not None)


class _StandFor(torch.autograd.Function):
    """Forward, the value that a part is of; backward, this rank's part of its gradient."""

    @staticmethod
    def forward(ctx, local, shape, policy):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.policy = policy
        return CutResult.of(local.detach(), shape, policy)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return None if gradient is None else ctx.policy.own_gradient(gradient), None, None


class _Open(torch.autograd.Function):
    """Forward, this rank's part of a cut value; backward, the cut gradient of which a part is this rank's."""

    @staticmethod
    def forward(ctx, cut):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        ctx.policy = cut.policy
        return cut.local.view_as(cut.local)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return None if gradient is None else ctx.policy.of_part(gradient)


class _Close(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cut):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        return cut.handed_on().detach()  # a tensor of its own, whose history nobody else's replaces

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient


def stand_for(local: torch.Tensor, shape: Sequence[int], policy: Policy) -> CutResult:
    """The value of this shape that a part is of, with a history if the part has one."""
    return (_StandFor.apply if is_recorded(local) else CutResult.of)(local, shape, policy)


def part_of(cut: CutResult) -> torch.Tensor:
    """This rank's part of a value that is not settled, with a history if the value has one."""
    return _Open.apply(cut) if is_recorded(cut) else cut.local


def closed(value: torch.Tensor) -> torch.Tensor:
    """A whole value for a cut one, with its history; any other tensor as it is."""
    if not isinstance(value, CutResult):
        return value
    return _Close.apply(value) if is_recorded(value) else value.handed_on()


def gathered(value: CutResult) -> torch.Tensor:
    """A value that is whole. One that its unit goes on with stays itself, whose gradient is all of it."""
    return value if value.goes_on and value.whole() is not None else closed(value)


def _numbers(func: Any, cut: CutResult) -> Any:
    return func(cut.whole())


def _in_memory(func: Any, cut: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of the memory of a tensor; with a history, torch says of it what it always does."""
    if not isinstance(cut, CutResult):
        return func(cut, *pytree.tree_map(closed, args), **kwargs)
    cut.shared()
    return func(closed(cut), *args, **kwargs)


def _set_data(func: Any, cut: CutResult, value: torch.Tensor) -> None:
    cut.take_memory_of(value)


# What asks for the memory of a tensor, which one that stands for a whole does not have.
_OF_MEMORY: dict[Any, Callable[..., Any]] = {
    T.tolist: _numbers,
    T.data.__set__: _set_data,  # type: ignore[attr-defined]
    T.data.__get__: _in_memory,  # type: ignore[attr-defined]
    **dict.fromkeys((T.numpy, T.__array__, T.__dlpack__, T.data_ptr, T.untyped_storage, T.storage), _in_memory),
}
