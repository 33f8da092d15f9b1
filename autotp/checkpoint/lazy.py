"""Tensors that are not read yet: what is done to them is noted, and done when somebody reads them.

A library that loads a checkpoint renames, joins, splits and casts tensors. On lazy tensors all of that costs nothing; what
comes out still knows which bytes of which file it is made of, so a rank can read the part it keeps and nothing else. What is
computed from them, such as a dequantized weight, is computed whole when it is read, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ..axes.layout import Layout
from ..errors import UsageError
from ..runtime.collectives.slices import take
from .boxes import boxes, elements
from .stored import fetch

aten = torch.ops.aten
MSG_WRITTEN = (
    "{name} writes into a weight that is read at the first call of its model; write into it after that call, or say what a call"
    " looks like: autotp.from_pretrained(..., example=autotp.Arguments(...))"
)


class Source(Protocol):
    """Where the data of a lazy tensor come from."""

    def open(self) -> torch.Tensor:
        """The whole tensor; one from a file is mapped, so that only what is touched is read."""
        ...


@dataclass(frozen=True)
class _Given:
    """A tensor in memory."""

    tensor: torch.Tensor

    def open(self) -> torch.Tensor:
        return self.tensor


@dataclass
class Meter:
    """Bytes read from files so far; `tell` hears of every addition."""

    count: int = 0
    tell: Callable[[int], None] = field(default=lambda count: None)

    def add(self, count: int) -> None:
        """Note that bytes were read."""
        self.count += count
        self.tell(count)


@dataclass(frozen=True)
class Step:
    """An operator applied to lazy and to plain tensors; `output` picks one of several results."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: int | None = None


# Operators that only move data, so that they commute with a cast. What others compute is computed whole, when it is read.
_MOVES = frozenset(
    getattr(aten, name)
    for name in """alias as_strided cat chunk clone detach diagonal expand flip index_select narrow permute repeat reshape
    roll select slice split split_with_sizes squeeze stack t transpose unbind unflatten unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze view _reshape_alias _unsafe_view""".split()
    if hasattr(aten, name)
)


class Lazy(torch.Tensor):
    """A tensor whose data are read when asked for. It has a shape and a dtype; its device says nothing."""

    _made_by: Source | Step

    @staticmethod
    def of(source: Source, shape: Sequence[int], dtype: torch.dtype) -> Lazy:
        """A lazy tensor of a source."""
        return Lazy._make(torch.empty(tuple(shape), dtype=dtype, device="meta"), source)

    @staticmethod
    def _make(like: torch.Tensor, made_by: Source | Step) -> Lazy:
        value = torch.Tensor._make_wrapper_subclass(
            Lazy, like.shape, strides=like.stride(), dtype=like.dtype, device=torch.device("cpu")
        )
        value.__dict__["_made_by"] = made_by
        return value

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        """What is given, as `module.to(dtype)` does: its data too."""
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self._made_by = value._made_by if isinstance(value, Lazy) else _Given(value)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Lazy({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if func.overloadpacket is aten._to_copy:
            dtype = kwargs.get("dtype") or args[0].dtype
            return cls._make(_meta(args[0]).to(dtype), Step(func, (_as_now(args[0]),), {"dtype": dtype}))
        if func.overloadpacket in _MOVES or _can_wait(func):
            results = func(*pytree.tree_map(_meta, args), **pytree.tree_map(_meta, kwargs))
            args, kwargs = pytree.tree_map(_as_now, (args, kwargs))
            if isinstance(results, torch.Tensor):
                return cls._make(results, Step(func, args, kwargs))
            return type(results)(cls._make(r, Step(func, args, kwargs, i)) for i, r in enumerate(results))
        _refuse_writes(func, args, kwargs)
        args, kwargs = pytree.tree_map(lambda v: read(v) if isinstance(v, Lazy) else v, (args, kwargs))
        return func(*args, **kwargs)


def _refuse_writes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises UsageError for an operator that writes into a lazy tensor, whose data would be lost."""
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        if argument.is_write and any(isinstance(leaf, Lazy) for leaf in pytree.tree_leaves(value)):
            raise UsageError(MSG_WRITTEN.format(name=func.overloadpacket.__name__))


_NOW = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}


def _can_wait(func: Any) -> bool:
    """Returns if an operator may be computed later: it writes nothing, and its shapes are known without data."""
    tensors = all(isinstance(result.type, torch.TensorType) for result in func._schema.returns)
    return tensors and not func._schema.is_mutable and not _NOW & set(func.tags)


def _as_now(value: Any) -> Any:
    """A lazy tensor that keeps its data where this one is given others."""
    return Lazy._make(_meta(value), value._made_by) if isinstance(value, Lazy) else value


def _meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


# A tensor, and if nothing has been read of it yet.
_Value: TypeAlias = tuple[torch.Tensor, bool]


def _evaluate(lazy: Lazy, dtype: torch.dtype, meter: Meter) -> _Value:
    """The data of a lazy tensor, a cast to `dtype` left for the end."""
    made_by = lazy._made_by
    if not isinstance(made_by, Step):
        return made_by.open(), True
    moves = made_by.function.overloadpacket in _MOVES | {aten._to_copy}
    found = [_evaluate(v, dtype, meter) if moves else (read(v, meter=meter), False) for v in _inputs(made_by)]
    if made_by.function.overloadpacket is aten._to_copy:
        ((value, unread),) = found
        return (value, unread) if lazy.dtype == dtype else (value.to(lazy.dtype), unread)
    is_view = made_by.function.is_view
    if made_by.function.overloadpacket is aten.clone and found[0][0].is_contiguous():
        return found[0]  # only made the data contiguous, which they are
    if not is_view:
        meter.add(sum(value.nbytes for value, unread in found if unread))
    values = iter([value for value, _ in found])
    args, kwargs = pytree.tree_map(
        lambda v: next(values) if isinstance(v, Lazy) else v, (made_by.args, dict(made_by.kwargs))
    )
    result = made_by.function(*args, **kwargs)
    result = result if made_by.output is None else result[made_by.output]
    return result, is_view and found[0][1]


def _inputs(step: Step) -> list[Lazy]:
    return [leaf for leaf in pytree.tree_leaves((step.args, dict(step.kwargs))) if isinstance(leaf, Lazy)]


def sources(lazy: Lazy) -> Iterator[Source]:
    """The sources that a lazy tensor is made from."""
    if isinstance(lazy._made_by, Step):
        for value in _inputs(lazy._made_by):
            yield from sources(value)
    else:
        yield lazy._made_by


@torch.no_grad()
def read(
    lazy: Lazy, layouts: Sequence[Layout] | None = None, rank: int = 0, meter: Meter | None = None
) -> torch.Tensor:
    """A rank's part of a lazy tensor, or all of it without layouts: plain and contiguous.

    What lies in one piece in a file and needs no cast stays on its private map of the file, as transformers has it; it is
    brought into memory now. Everything else gets memory of its own.
    """
    meter = Meter() if meter is None else meter
    if layouts and _is_joined(lazy):
        return _joined_part(lazy, layouts, rank, meter)
    value, unread = _evaluate(lazy, lazy.dtype, meter)
    part = take(value, layouts, rank) if layouts else value
    on_map = unread and part.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    if on_map:
        part = part.contiguous()
        fetch(part)
    if unread:
        meter.add((elements(layouts, rank) if layouts else value.numel()) * value.itemsize)
    return part.to(lazy.dtype)


_COPIES = frozenset({aten.clone, aten.detach, aten.alias, aten._to_copy})


def _is_joined(lazy: Lazy) -> bool:
    """Returns if a tensor is put together from others, as stacked experts are: of each only a part may be wanted."""
    step = lazy._made_by
    while isinstance(step, Step) and step.function.overloadpacket in _COPIES:
        step = step.args[0]._made_by
    return isinstance(step, Step) and step.function.overloadpacket in (aten.cat, aten.stack)


def _joined_part(lazy: Lazy, layouts: Sequence[Layout], rank: int, meter: Meter) -> torch.Tensor:
    """A rank's part of a tensor that is put together from others: of each only what the part has of it is read."""
    part = torch.zeros([layout.local_size for layout in layouts], dtype=lazy.dtype)
    for box in boxes(layouts, rank):
        box.of(part).copy_(_read_box(lazy, box.whole, box.sizes, meter))
    return part


def _read_box(lazy: Lazy, starts: Sequence[int], sizes: Sequence[int], meter: Meter) -> torch.Tensor:
    """A box of a lazy tensor."""
    step = lazy._made_by
    packet = step.function.overloadpacket if isinstance(step, Step) else None
    if isinstance(step, Step) and packet in _COPIES:
        return _read_box(step.args[0], starts, sizes, meter).to(lazy.dtype)
    if isinstance(step, Step) and packet in (aten.cat, aten.stack):
        return _read_join(step, starts, sizes, meter)
    value, unread = _evaluate(lazy, lazy.dtype, meter)
    part = value[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
    if unread:
        meter.add(part.nbytes)
    return part


def _read_join(step: Step, starts: Sequence[int], sizes: Sequence[int], meter: Meter) -> torch.Tensor:
    """A box of what was joined, from the boxes of what it was joined from."""
    stacked = step.function.overloadpacket is aten.stack
    dim = (step.args[1] if len(step.args) > 1 else step.kwargs.get("dim", 0)) % len(starts)
    parts, offset = [], 0
    for value in step.args[0]:
        length = 1 if stacked else value.shape[dim]
        start, end = max(starts[dim] - offset, 0), min(starts[dim] + sizes[dim] - offset, length)
        offset += length
        if start < end:
            own = ((), ()) if stacked else ((start,), (end - start,))
            inner = [(*whole[:dim], *mine, *whole[dim + 1 :]) for whole, mine in zip((starts, sizes), own, strict=True)]
            parts.append(_read_box(value, inner[0], inner[1], meter))
    return torch.stack(parts, dim) if stacked else torch.cat(parts, dim)
