"""What varies from call to call of a unit, and so is no constant of a program."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..errors import TraceError
from .leaves import leaves_of
from .reads import HandleGuard, HandleRead
from .signature import CallSite, call_site

MSG_SIZED = "it is called with a tensor whose size depends on values, and examples have none"


@dataclass(frozen=True)
class Seen:
    """What one place in a unit's call was given: the sizes of a tensor, or a number, as JSON, and which of these vary."""

    place: str
    is_tensor: bool
    sizes: str
    varying: tuple[int, ...]


class VaryingDims:
    """Which dims of a unit's inputs, which of its numbers, and which numbers it reads from objects vary between calls.

    Each is taken as constant until two calls differ in it, as `torch.compile` does by itself. What calls were `seen` before is
    known from the start.
    """

    def __init__(self, seen: Iterable[Seen] = ()) -> None:
        # By the place in the call and the number of dims, which a number, unlike a tensor, has not.
        self._seen: dict[tuple[str, int | None], list[int]] = {}
        self._varying: dict[tuple[str, int | None], set[int]] = {}
        for each in seen:
            sizes = json.loads(each.sizes)
            place = each.place, len(sizes) if each.is_tensor else None
            self._seen[place], self._varying[place] = sizes, set(each.varying)
        self._read: dict[str, HandleGuard] = {}
        self._varying_reads: dict[str, HandleRead] = {}

    def observe(self, site: CallSite, positions: tuple[int, ...] = ()) -> None:
        """Compare a call with the ones before it."""
        for path, tensor in zip(site.paths("tensor"), site.tensors, strict=True):
            self._compare((path, tensor.dim()), [int(size) for size in tensor.shape])
        for path, number in zip(site.paths("number"), site.numbers, strict=True):
            self._compare((path, None), [number])
        for name, guard in self._read.items():
            if name not in self._varying_reads and not guard.holds(site.handles, positions):
                self._varying_reads[name] = guard.read

    def seen(self) -> tuple[Seen, ...]:
        """What the calls were given that were observed."""
        return tuple(
            Seen(path, dims is not None, json.dumps(sizes), tuple(sorted(self._varying[path, dims])))
            for (path, dims), sizes in self._seen.items()
        )

    def _compare(self, place: tuple[str, int | None], sizes: list[int]) -> None:
        before = self._seen.setdefault(place, sizes)
        self._varying.setdefault(place, set()).update(
            i for i, (old, new) in enumerate(zip(before, sizes, strict=True)) if old != new
        )

    def said(self, site: CallSite) -> str:
        """What a trace of a call takes as varying, and all else, as text."""
        tensors = zip(site.paths("tensor"), site.tensors, strict=True)
        sizes = [[-1 if i in self.of(path, t) else int(s) for i, s in enumerate(t.shape)] for path, t in tensors]
        numbers = zip(site.paths("number"), site.numbers, strict=True)
        values = ["varies" if self.of_number(path) else number for path, number in numbers]
        return f"{sizes} {values} {sorted(self._varying_reads)}"

    def mark(self, site: CallSite, dims: Collection[tuple[int, int]]) -> None:
        """Take dims (tensor, dim) of a call as varying."""
        paths = site.paths("tensor") if dims else []
        for number, dim in dims:
            self._varying.setdefault((paths[number], site.tensors[number].dim()), set()).add(dim)

    def observe_reads(self, guards: Sequence[HandleGuard]) -> None:
        """Remember the numbers that a trace read from objects, to compare them with the next call's."""
        for guard in guards:
            if guard.varies and type(guard.value) is int:
                self._read.setdefault(guard.read.name, guard)

    def of(self, path: str, tensor: torch.Tensor) -> set[int]:
        """The dims of the input at this place that vary."""
        return self._varying.get((path, tensor.dim()), set())

    def of_number(self, path: str) -> bool:
        """Returns if the number at this place varies."""
        return bool(self._varying.get((path, None)))

    def reads(self) -> tuple[HandleRead, ...]:
        """The numbers read from objects that vary."""
        return tuple(self._varying_reads.values())


class UnsizedError(TraceError):
    """The size of every tensor in a call depends on values, and so does that of what is made of them."""

    def __init__(self) -> None:
        super().__init__(MSG_SIZED)


def sized_site(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallSite:
    """What a recorded call gives a unit. Raises TraceError for sizes that are known only where the model runs, and of this class
    UnsizedError if there are no others."""
    try:
        site = call_site(module, args, kwargs)
        if all(map(_is_sized, site.tensors)):
            return site
    except GuardOnDataDependentSymNode:
        pass
    raise TraceError(MSG_SIZED) if any(_are_sized(args, kwargs)) else UnsizedError()


def is_sized(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns if no size in a recorded call depends on values."""
    return all(_are_sized(args, kwargs))


def _are_sized(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
    return [_is_sized(leaf) for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def _is_sized(tensor: torch.Tensor) -> bool:
    """Returns if no size of a tensor depends on values."""
    try:
        return all(int(size) >= 0 for size in tensor.shape)
    except GuardOnDataDependentSymNode:
        return False
