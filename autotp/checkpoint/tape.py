"""Deferred initialisation: the code that builds a model runs on tensors without data, and what it does to them is noted.

Any tensor can then be computed later, by itself, from the operators that lead to it. Every operator that draws random numbers
has a number, which together with the seed says what it draws: what is computed when, and how often, changes nothing.
Code that looks at data (a loop that draws again what lies out of bounds) gets them: what it looks at is computed at once.
"""

from __future__ import annotations

import bisect
import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..errors import UsageError
from ..runtime.devices.randomness import seeded

aten = torch.ops.aten
_BUILDING = threading.Lock()  # libraries swap functions of torch while they initialise, for all threads

# Operators whose results hold what the memory happens to hold.
_EMPTY = frozenset(
    {aten.empty, aten.empty_like, aten.empty_permuted, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
)
# Operators that write every element of their first argument and do not read it.
_OVERWRITES = frozenset({aten.copy_, aten.exponential_, aten.fill_, aten.normal_, aten.uniform_, aten.zero_})
# Operators whose results, or the sizes of these, depend on data.
_LOOKS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


@dataclass(frozen=True)
class Place:
    """Where the elements of a tensor lie: the number of a storage, and how it is looked at."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Call:
    """An operator that was called: places stand for tensors. `made` are the new storages, by the result they come with."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    draw: int | None
    reads: frozenset[int]
    made: tuple[tuple[int, Place], ...]
    overwrites: int | None

    def used(self) -> set[int]:
        """The storages that are read, written or made."""
        return {*self.reads, *(place.storage for _, place in self.made)}


class Tape(TorchDispatchMode):
    """What code does to tensors without data; `compute` gives one of them data."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self._calls: list[Call] = []
        self._changes: dict[int, list[int]] = defaultdict(list)  # storage -> the calls that make or write it
        self._known: dict[
            int, tuple[int, torch.UntypedStorage]
        ] = {}  # kept alive, so that an identity means one storage
        self._sizes: list[int] = []
        self._constants: dict[int, torch.Tensor] = {}
        self._draws = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: None if name == "generator" else value for name, value in (kwargs or {}).items()}
        draw = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._draws, draw = self._draws + 1, self._draws
        written = _written(func, args, kwargs)
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if _LOOKS & set(func.tags) or any(map(_has_data, written)) or (given and all(map(_has_data, given))):
            args, kwargs = pytree.tree_map_only(FakeTensor, self._look, (args, kwargs))
            return self._run(func, args, kwargs, draw)
        placed = pytree.tree_map_only(torch.Tensor, self.place, (args, kwargs))
        args, kwargs = pytree.tree_map_only(torch.Tensor, _without_data, (args, kwargs))
        result = func(*args, **kwargs)
        self._note(func, placed, written, result, draw)
        return result

    def place(self, tensor: torch.Tensor) -> Place:
        """Where a tensor of the code inside lies; for one that has data, a copy of these is kept."""
        if tensor.is_conj() or tensor.is_neg():
            raise UsageError(
                "an initial value is a conjugate view; let the code that builds the model call .resolve_conj()"
            )
        if isinstance(tensor, FakeTensor):
            shape, strides = tuple(tensor.shape), tuple(tensor.stride())
            return Place(self._number(tensor), tensor.dtype, shape, strides, int(tensor.storage_offset()))
        with _disable_current_modes():
            value = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._constants[len(self._sizes)] = value
        self._sizes.append(value.nbytes)
        return Place(len(self._sizes) - 1, value.dtype, tuple(value.shape), tuple(value.stride()), 0)

    def _number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known[storage._cdata] = (len(self._sizes), storage)
            self._sizes.append(storage.nbytes())
        return self._known[storage._cdata][0]

    def _note(self, func: Any, placed: Any, written: Sequence[torch.Tensor], result: Any, draw: int | None) -> None:
        made = []
        for index, leaf in enumerate(pytree.tree_leaves(result)):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in self._known:
                made.append((index, self.place(leaf)))
        changed = {self._number(tensor) for tensor in written} | {place.storage for _, place in made}
        if not changed:
            return  # a view
        reads = frozenset(leaf.storage for leaf in pytree.tree_leaves(placed) if isinstance(leaf, Place))
        over = placed[0][0] if func.overloadpacket in _OVERWRITES else None
        whole = over.storage if over is not None and self._is_all(over) else None
        for storage in changed:
            self._changes[storage].append(len(self._calls))
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), placed)
        self._calls.append(Call(func, args, kwargs, draw, reads, tuple(made), whole))

    def _is_all(self, place: Place) -> bool:
        """Returns if a place is all of its storage, in order."""
        like = torch.empty_strided(place.shape, place.strides, dtype=place.dtype, device="meta")
        return like.is_contiguous() and like.numel() * like.itemsize == self._sizes[place.storage]

    def is_written(self, place: Place) -> bool:
        """Returns if anything was written where a tensor lies."""
        empty = all(self._calls[i].function.overloadpacket in _EMPTY for i in self._changes[place.storage])
        return place.storage in self._constants or not empty

    def digest(self) -> str:
        """Equal for equal calls, seeds and data."""
        found = hashlib.sha256(f"{self.seed} {self._calls}".encode())
        for value in self._constants.values():
            found.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def _look(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.compute(self.place(tensor))

    @torch.no_grad()
    def compute(self, place: Place) -> torch.Tensor:
        """The data of a tensor, computed again: nothing of it is kept, and what it is made from is freed on the way."""
        with _disable_current_modes():
            memory: dict[int, torch.UntypedStorage] = {}
            chosen = self._leading_to(place.storage)
            last = {storage: i for i in chosen for storage in self._calls[i].used()}
            for i in chosen:
                self._call_again(self._calls[i], memory)
                for storage in self._calls[i].used():
                    if last[storage] == i and storage != place.storage:
                        memory.pop(storage, None)
            return self._tensor(place, memory)

    def _leading_to(self, storage: int) -> list[int]:
        """The calls that what a storage holds at the end is made of, in order."""
        chosen: set[int] = set()
        asked: set[tuple[int, int]] = set()
        open_ = [(storage, len(self._calls))]
        while open_:
            wanted, before = open_.pop()
            if (wanted, before) in asked:
                continue
            asked.add((wanted, before))
            changes = self._changes[wanted]
            for i in reversed(changes[: bisect.bisect_left(changes, before)]):
                chosen.add(i)
                open_ += [(other, i) for other in self._calls[i].reads if other != wanted]
                if self._calls[i].overwrites == wanted:
                    break
        return sorted(chosen)

    def _call_again(self, call: Call, memory: dict[int, torch.UntypedStorage]) -> None:
        args, kwargs = pytree.tree_map_only(Place, lambda p: self._tensor(p, memory), (call.args, dict(call.kwargs)))
        leaves = pytree.tree_leaves(self._run(call.function, args, kwargs, call.draw))
        for index, place in call.made:
            value = leaves[index]
            if call.function.overloadpacket in _EMPTY and (value.is_floating_point() or value.is_complex()):
                value.fill_(torch.nan)  # so that it is seen if nothing else is ever written
            if (value.stride(), value.storage_offset()) == (place.strides, place.offset):
                memory[place.storage] = value.untyped_storage()
            else:  # this operator lays out its result in another way where there are data
                self._tensor(place, memory).copy_(value)

    def _run(self, func: Any, args: Any, kwargs: Any, draw: int | None) -> Any:
        with _disable_current_modes(), nullcontext() if draw is None else seeded(self.seed, draw):
            return func(*args, **kwargs)

    def _tensor(self, place: Place, memory: dict[int, torch.UntypedStorage]) -> torch.Tensor:
        if place.storage not in memory:
            constant = self._constants.get(place.storage)
            fresh = torch.UntypedStorage(self._sizes[place.storage])
            memory[place.storage] = fresh if constant is None else constant.clone().untyped_storage()
        value = torch.empty(0, dtype=place.dtype)
        return value.set_(memory[place.storage], place.offset, place.shape, place.strides)


def record(build: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, Tape]:
    """Build a model without data, and note how its tensors get theirs. The global random state is left as it is."""
    tape = Tape(seed)
    with _BUILDING, seeded(seed), torch.device("cpu"), FakeTensorMode(allow_non_fake_inputs=True), tape:
        return build(), tape


def _has_data(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor)


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor, or one without data that stands for it."""
    return torch.empty(tensor.shape, dtype=tensor.dtype) if _has_data(tensor) else tensor


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that an operator writes into."""
    schema = func._schema.arguments
    given = {**dict(zip((argument.name for argument in schema), args, strict=False)), **kwargs}
    values = [
        given.get(argument.name)
        for argument in schema
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
