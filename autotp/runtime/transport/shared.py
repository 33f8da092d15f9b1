"""Collectives of CPU tensors between processes of one machine, through memory that all of them map.

The memory has two halves, which exchanges use in turn, and in each half a slot for every rank. In an exchange a rank
writes its slot, meets the others, and reads theirs. No second meeting is needed before a half is written again, two
exchanges later: the writer has then met the others for the exchange between, and no rank comes to that one before it
has read what it needs of the one before.

Sums are taken in the order of the ranks, by every rank alike or by one rank for all: results are equal to the bit.
"""

from __future__ import annotations

import functools
import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeAlias

import torch

from ...outside.own import FUNCTIONS
from .alarm import Alarm
from .host import Exchange, Process, map_together
from .meeting import LINE_BYTES, Meeting

SLOT_BYTES = 1 << 20
SPARED_BYTES = 1 << 19  # what must be read less for adding by shares to be worth its second meeting
KEPT_SHAPES = 256

_COMBINE: dict[str, Callable[..., torch.Tensor]] = {"sum": torch.add, "max": torch.maximum}
_NARROW = (torch.bfloat16, torch.float16)

P = ParamSpec("P")
# The slots of both halves in the shape of one tensor, and a number for the exchange they are for.
_Views: TypeAlias = tuple[int, tuple[tuple[torch.Tensor, ...], ...]]


def _header_bytes(size: int) -> int:
    return -(-size * LINE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE


def _telling(method: Callable[P, torch.Tensor]) -> Callable[P, torch.Tensor]:
    """Let the other ranks hear of what a collective raises."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> torch.Tensor:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            alarm = args[0]._alarm  # type: ignore[attr-defined]
            if alarm is not None:
                alarm.tell(error)
            raise

    return run


class HostGroup:
    """Ranks of one machine. All ranks call its methods in the same order, with tensors of equal shape and dtype.

    Tensors may have any strides; results are new and contiguous. Nothing here is differentiable. Every method raises
    RankLostError if a rank has ended, does not come in time, or comes with another collective.
    """

    def __init__(self, rank: int, memory: mmap.mmap, processes: Sequence[Process], timeout_s: float) -> None:
        self.rank, self.size = rank, len(processes)
        header = _header_bytes(self.size)
        self._meeting = Meeting(memoryview(memory)[:header].cast("q"), rank, processes, timeout_s)
        slots = torch.frombuffer(memory, dtype=torch.uint8, count=2 * self.size * SLOT_BYTES, offset=header)
        self._slots = slots.view(2, self.size, SLOT_BYTES)
        self._alarm: Alarm | None = None
        self._turn, self.mark, self.topic = 0, 0, 0  # mark and topic are joined to what every meeting compares
        self._views: dict[tuple[str, torch.Size, torch.dtype], _Views] = {}

    @staticmethod
    def form(rank: int, size: int, exchange: Exchange, timeout_s: float) -> HostGroup | None:
        """The group that calls this together, or None on all of its ranks if they cannot share memory.

        `rank` is this process's position among the `size` members, in the order of what `exchange` gives.
        """
        made = map_together(_header_bytes(size) + 2 * size * SLOT_BYTES, exchange)
        return None if made is None else HostGroup(rank, *made, timeout_s)

    def listen(self, alarm: Alarm | None, members: Sequence[int]) -> None:
        """Tell who waits why this rank does not come, and hear it of others; `members` are the global ranks of the group."""
        self._alarm = alarm
        if alarm is not None:
            self._meeting.look, self._meeting.heard = alarm.look, lambda place: alarm.heard(members[place])

    @_telling
    def all_reduce(self, value: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """The sum, or with `op="max"` the largest, of the ranks' tensors element by element."""
        if value.requires_grad:
            value = value.detach()
        held = value.numel() * value.element_size()
        if (self.size - 2) * held > SPARED_BYTES:
            return self._all_reduce_by_shares(value, op)
        if held > SLOT_BYTES:
            return self._all_reduce_by_chunks(value, op)
        slots = self._exchange(value, op)
        return _COMBINE[op](*slots) if self.size == 2 else _total(slots, op)

    @_telling
    def all_gather(self, value: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors, stacked in order along a new first dim."""
        value = value.detach()
        if value.numel() * value.element_size() <= SLOT_BYTES:
            return FUNCTIONS.stack(self._exchange(value, "gather"))
        flat = value.reshape(-1)
        result = flat.new_empty(self.size, flat.numel())
        for start, stop, slots in self._chunks(flat):
            slots[self.rank].copy_(flat[start:stop])
            self._meet("gather", flat, stop)
            result[:, start:stop].copy_(slots)
        return result.view(self.size, *value.shape)

    @_telling
    def reduce_scatter(self, parts: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """What `all_reduce` of this rank's part would be; `parts` has one for each rank, along its first dim."""
        flat = parts.detach().reshape(self.size, -1)
        result = flat.new_empty(flat.shape[1])
        for start, stop, slots in self._chunks(flat[0], self.size):
            slots.view(self.size, self.size, -1)[self.rank].copy_(flat[:, start:stop])
            self._meet(f"scatter {op}", flat, stop)
            mine = slots.view(self.size, self.size, -1)[:, self.rank]
            _total(mine.unbind(), op, result[start:stop])
        return result.view(parts.shape[1:])

    def _exchange(self, value: torch.Tensor, kind: str) -> tuple[torch.Tensor, ...]:
        """Every rank's tensor, in memory that is theirs until this rank comes to the next exchange."""
        key = (kind, value.shape, value.dtype)
        note, halves = self._views.get(key) or self._make_views(key)
        slots = halves[self._turn]
        self._turn ^= 1
        slots[self.rank].copy_(value)
        self._meeting.meet(note ^ self.mark ^ self.topic)
        return slots

    def _make_views(self, key: tuple[str, torch.Size, torch.dtype]) -> _Views:
        kind, shape, dtype = key
        with torch.inference_mode(False):  # tensors made in inference mode could not be written outside of it
            typed = self._slots.view(dtype)[:, :, : shape.numel()]
            halves = tuple(tuple(slot.view(shape) for slot in half) for half in typed)
        if len(self._views) >= KEPT_SHAPES:
            self._views.clear()
        self._views[key] = hash((_number(kind, dtype), *shape)), halves
        return self._views[key]

    def _all_reduce_by_chunks(self, value: torch.Tensor, op: str) -> torch.Tensor:
        """Every rank adds everything."""
        flat = value.reshape(-1)
        result = torch.empty_like(flat)
        for start, stop, slots in self._chunks(flat):
            slots[self.rank].copy_(flat[start:stop])
            self._meet(op, flat, stop)
            _total(slots.unbind(), op, result[start:stop])
        return result.view(value.shape)

    def _all_reduce_by_shares(self, value: torch.Tensor, op: str) -> torch.Tensor:
        """Each rank adds a share of every chunk, then reads the shares that the others added."""
        flat = value.reshape(-1)
        result = torch.empty_like(flat)
        for start, stop, slots in self._chunks(flat):
            chunk, out = flat[start:stop], result[start:stop]
            share = -(-chunk.numel() // self.size)
            parts = [slice(other * share, (other + 1) * share) for other in range(self.size)]
            mine = parts[self.rank]
            for other in self._others():
                slots[self.rank, parts[other]].copy_(chunk[parts[other]])
            self._meet(op, flat, stop)
            addends = [slot[mine] for slot in slots]
            addends[self.rank] = chunk[mine]
            _total(addends, op, slots[self.rank, mine])
            self._meet(op, flat, -stop)
            for other in range(self.size):
                out[parts[other]].copy_(slots[other, parts[other]])
        return result.view(value.shape)

    def _others(self) -> Iterator[int]:
        return (other for other in range(self.size) if other != self.rank)

    def _chunks(self, flat: torch.Tensor, copies: int = 1) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Where each piece of a flat tensor begins and ends, and the slots (ranks, copies * length) it goes through."""
        typed = self._slots.view(flat.dtype)
        step = typed.shape[2] // copies
        for start in range(0, flat.numel(), step):
            stop = min(start + step, flat.numel())
            half = typed[self._turn, :, : copies * (stop - start)]
            self._turn ^= 1
            yield start, stop, half

    def _meet(self, kind: str, flat: torch.Tensor, place: int) -> None:
        self._meeting.meet(hash((_number(kind, flat.dtype), flat.numel(), place)) ^ self.mark ^ self.topic)


@functools.cache
def _number(kind: str, dtype: torch.dtype) -> int:
    """Equal in all processes, as the hash of numbers is and that of text is not."""
    return zlib.crc32(f"{kind} {dtype}".encode())


def _total(parts: Sequence[torch.Tensor], op: str, out: torch.Tensor | None = None) -> torch.Tensor:
    """All parts combined in order; sums of more than two narrow floats are rounded once."""
    combine, first = _COMBINE[op], parts[0]
    if op == "sum" and len(parts) > 2 and first.dtype in _NARROW:
        total = first.float()
        for part in parts[1:]:
            total += part
        return total.to(first.dtype) if out is None else out.copy_(total)
    if len(parts) == 1:
        return first.clone() if out is None else out.copy_(first)
    total = combine(first, parts[1], out=out)
    for part in parts[2:]:
        combine(total, part, out=total)
    return total
