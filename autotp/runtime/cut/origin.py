"""What a cut tensor knows of itself: how it is cut, between which ranks, and how the whole is put together."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...axes.layout import Factor, Factors, Layout, factors_of, is_even, is_padded, local_factors, parts_of
from ...errors import RankLostError, TraceError, UsageError
from ..collectives.slices import padding, take
from ..devices.devices import CPU
from ..groups.ranks import Ranks
from .joined import PartOf, WholeOf
from .memories import Memory

# Inside, functions of cut tensors compute on the part and give plain tensors.
parts_only = torch._C.DisableTorchFunctionSubclass
MSG_ALONE = (
    "{error}; all ranks compute {what} of {name} together: call it on every rank, or ask for this rank's part alone with"
    " .local()"
)
MSG_SET = (
    "set_ would give {name}, a cut tensor, other memory; write into it, or make a new tensor, {name}.detach().clone()"
)
MSG_NAME = "{attribute} is a function of {name}, which is cut over ranks: give your attribute another name"
MSG_TRACED = "it reads {name}, a cut tensor that is none of its parameters"
_tracing = threading.local()
# What torch fills at some positions, and what it fills in place of all others.
_FILLED = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.complex32,
)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """What is in containers, with something done to each; sizes stay sizes, which torch tells from tuples."""
    return pytree.tree_map(function, tree, is_leaf=lambda value: type(value) is torch.Size)


@contextmanager
def sending_nothing() -> Iterator[None]:
    """Inside, what would send something for a cut tensor raises TraceError: ranks trace when they like, and wait for nobody."""
    _tracing.on = True
    try:
        yield
    finally:
        _tracing.on = False


@dataclass(frozen=True, eq=False)
class Origin:
    """Which parameter something is a part of, or is made of: how it is cut, between which ranks, and its name."""

    layouts: tuple[Layout, ...]
    ranks: Ranks
    name: str = "a cut tensor"

    @functools.cached_property
    def shape(self) -> torch.Size:
        """The sizes of the whole."""
        return torch.Size([layout.size for layout in self.layouts])

    @functools.cached_property
    def everybody(self) -> Factors:
        return (Factor(self.ranks.size, 1),)

    @functools.cached_property
    def padding(self) -> list[tuple[int, torch.Tensor]]:
        """The dims that are padded on this rank, and where."""
        places = [(dim, padding(own, self.ranks.rank)) for dim, own in enumerate(self.layouts) if is_padded(own)]
        return [(dim, where) for dim, where in places if len(where)]

    @functools.cached_property
    def has_padding(self) -> bool:
        """Returns if any rank has padding."""
        return any(map(is_padded, self.layouts))

    @functools.cached_property
    def _places(self) -> dict[torch.device, list[tuple[int, torch.Tensor]]]:
        return {}

    def padding_on(self, device: torch.device) -> list[tuple[int, torch.Tensor]]:
        """The same, where its positions need not be copied to a device each time."""
        if device not in self._places:
            self._places[device] = [(dim, where.to(device)) for dim, where in self.padding]
        return self._places[device]

    @functools.cached_property
    def shares(self) -> tuple[float, list[tuple[int, torch.Tensor]]]:
        """How much an element counts on each of the ranks that hold it: a number, times one for each position of some dims."""
        even = frozenset[Factor]().union(*(factors_of(layout) for layout in self.layouts if is_even(layout)))
        uneven = [
            (dim, torch.tensor([float(parts_of(tuple(over))) for over in local_factors(layout)]))
            for dim, layout in enumerate(self.layouts)
            if not is_even(layout)
        ]
        return parts_of(tuple(even)) / self.ranks.size, uneven

    def fits(self, other: Origin) -> bool:
        """Returns if two tensors are cut alike, so that their parts hold the same elements."""
        alike = other.ranks is self.ranks or self.ranks.are_those_of(other.ranks)
        return other is self or (alike and other.layouts == self.layouts)

    def take(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole value, or of one that is broadcast over some dims; dense, also of a sparse gradient."""
        whole = whole.to_dense() if whole.layout is not torch.strided else whole
        own = self.layouts[len(self.layouts) - whole.dim() :]
        along = [layout if size == layout.size else None for layout, size in zip(own, whole.shape, strict=True)]
        return take(whole, along, self.ranks.rank)

    def all_reduce(self, value: torch.Tensor, what: str, op: str = "sum") -> torch.Tensor:
        """The sum, or the largest, of every rank's value."""
        with self._named(what):
            found = self.ranks.all_reduce(self.sent(value), self.everybody, "norm", "parameter", op)
        return found.to(value.device)

    def sent(self, value: torch.Tensor) -> torch.Tensor:
        """A value where ranks can exchange it: of a parameter that was taken to the host, on their devices again."""
        return value.to(self.ranks.device) if value.device.type == CPU.type else value

    def whole(self, part: torch.Tensor, what: str) -> torch.Tensor:
        """The whole of every rank's part, with its history."""
        with self._named(what):
            return WholeOf.apply(part, self)

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole value of these sizes, with its history: the gradient of the whole is every rank's."""
        return PartOf.apply(whole, self)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        if not torch.compiler.is_compiling() and getattr(_tracing, "on", False):
            raise TraceError(MSG_TRACED.format(name=self.name))
        try:
            with self.ranks.about(f"{what} of {self.name}"):
                yield
        except RankLostError as error:
            raise RankLostError(MSG_ALONE.format(error=error, what=what, name=self.name)) from error


def _set_half(tensor: Any, name: str, value: Any) -> bool:
    """Returns if an attribute is the real or the imaginary half, which torch writes without asking: that has been done then."""
    if name not in ("real", "imag") or not torch._C._is_torch_function_enabled():
        return False
    getattr(tensor, name).copy_(value)
    return True


class IsView:
    """What views of a gathered whole have; see `views.py`."""

    __slots__ = ()

    autotp_cut: Any
    autotp_root: torch.Tensor

    def __setattr__(self, name: str, value: Any) -> None:
        if not _set_half(self, name, value):
            super().__setattr__(name, value)

    def taken(self, what: str) -> torch.Tensor:
        """The view as a plain tensor, gathered again if the part was written to."""
        raise NotImplementedError


class IsCut:
    """What every cut tensor has, whatever it is on this rank."""

    __slots__ = ()

    # What others may give a parameter as an attribute has other names than these.
    autotp_origin: Origin
    autotp_memory: Memory
    autotp_is_whole = True  # what it says of itself is true of a whole

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises UsageError for the name of a function of cut tensors, which would be found in its place."""
        if name in own_names():
            raise UsageError(MSG_NAME.format(name=self.autotp_origin.name, attribute=name))
        if not _set_half(self, name, value):
            super().__setattr__(name, value)

    def __copy__(self) -> Any:
        made = self.detach()  # type: ignore[attr-defined]
        wanted = self.requires_grad  # type: ignore[attr-defined]
        return nn.Parameter(made, wanted) if isinstance(self, nn.Parameter) else made.requires_grad_(wanted)

    def wrap(self, held: Any, memory: Memory | None = None) -> Any:
        """As cut as this one: what was made of it element by element, or has its memory."""
        raise NotImplementedError

    def claim(self, made: Any, memory: Memory | None = None) -> Any:
        """As `wrap`, of what nobody else has: it need be no second tensor."""
        return self.wrap(made, memory)

    def same_memory(self, *, based: bool = False) -> Any:
        """A second tensor over the memory: it keeps that when this one is given other data, or is swapped."""
        with parts_only():
            made = self.claim(self.detach(), self.autotp_memory)  # type: ignore[attr-defined]
            # See `attributes.py`: a view has its base, which what is a view is not.
            under = self.__dict__.get("autotp_under") if based else None
            if under is not None and not under._is_view():
                made.__dict__["autotp_under"] = under
            return made

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """What this rank holds of another whole value."""
        raise NotImplementedError

    def local(self) -> torch.Tensor:
        """This rank's part, padding included, as a plain tensor with the same memory. Needs no other rank."""
        raise NotImplementedError

    def whole(self, what: str = ".whole()") -> torch.Tensor:
        """The whole as a plain tensor, gathered from all ranks, which must come here together."""
        raise NotImplementedError

    def starts(self) -> Sequence[int]:
        """Where in the tensor-parallel rank's part what is here begins."""
        raise NotImplementedError

    def sum_over_shards(self, value: torch.Tensor, op: str) -> torch.Tensor:
        """A value of this tensor-parallel rank's part, from those of what its data-parallel ranks hold of it."""
        return value

    def __repr__(self) -> str:
        origin, held = self.autotp_origin, tuple(self.local().shape)
        layouts = ", ".join(map(str, origin.layouts))
        place = f"rank {origin.ranks.rank} of {origin.ranks.size}"
        return f"{type(self).__name__}({tuple(origin.shape)} cut as [{layouts}]; {place} holds {held})"

    def store(self, whole: torch.Tensor) -> None:
        """Take over this rank's part of a whole value."""
        with parts_only(), torch.no_grad():
            self.copy_(self.part_of(whole.detach()))  # type: ignore[attr-defined]
        self.note_written()

    def set_(self, *args: Any, **kwargs: Any) -> Any:
        """As `.data =`, for a tensor of the whole's sizes. Raises UsageError for any other memory, since torch gives it without
        asking, and the part would have sizes of its own."""
        if not torch._C._is_torch_function_enabled():
            return super().set_(*args, **kwargs)  # type: ignore[misc]
        if kwargs or len(args) != 1 or getattr(args[0], "shape", None) != self.autotp_origin.shape:
            raise UsageError(MSG_SET.format(name=self.autotp_origin.name))
        self.data = args[0]
        return self

    def note_written(self) -> None:
        """After a write into the part: its padding is zero again, and views of the whole are out of date."""
        self.autotp_memory.writes += 1
        self.zero_padding()

    def zero_padding(self) -> None:
        """Let padding be zero, as programs rely on. Autograd counts no write: no derivative of an element depends on padding."""
        if self.autotp_origin.padding:
            with parts_only(), torch.no_grad():
                held = self.local().data
                if held.dtype not in _FILLED:
                    held = held.view(_BITS[held.element_size()])  # zero is the same in each of them
                for dim, where in self.padding_here():
                    held.index_fill_(dim, where, 0)

    def padding_here(self) -> list[tuple[int, torch.Tensor]]:
        """The dims in which this rank holds more than the whole has, and where."""
        found, starts, held = [], self.starts(), self.local()
        for dim, where in self.autotp_origin.padding:
            here = where - starts[dim]
            here = here[(here >= 0) & (here < held.shape[dim])]
            found.append((dim, here.to(held.device)))
        return found


def form_of(value: Any) -> tuple[int, bool]:
    """What tells apart the wholes of cut tensors: their memory, and if what is in it is read as conjugate."""
    cut = value.autotp_cut if isinstance(value, IsView) else value
    with parts_only():
        return id(cut.autotp_memory), cut.is_conj()


@functools.cache
def own_names() -> frozenset[str]:
    """The names of all functions of cut tensors that torch's tensors do not have."""
    return frozenset(
        name for kind in (IsCut, *IsCut.__subclasses__()) for name in vars(kind) if not name.startswith("__")
    )
