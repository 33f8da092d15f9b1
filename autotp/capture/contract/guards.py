"""Guards: what a trace read, as a list, which holds for a unit or does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from .apart import Memory
from .check import check_of
from .memo import Memo
from .modes import Modes
from .source import Source, own_attributes
from .values import agree, are_same_keys, is_same


@dataclass(frozen=True, eq=False)
class Guard:
    """What must be found at a source for a program to hold."""

    source: Source
    expected: Any

    def holds(self, now: Any) -> bool:
        """Returns if what is found there now is the same to a program."""
        if self.source.kind in ("content", "names", "order"):
            is_keys = type(now) is tuple and type(self.expected) is tuple
            return are_same_keys(self.expected, now) if is_keys else is_same(self.expected, now)
        if self.source.kind == "probe" and isinstance(self.expected, (tuple, dict)):
            return bool(now == self.expected)
        return agree(self.expected, now)


def grouped(sources: Sequence[Source], unit: nn.Module, found: dict[Source, Any]) -> tuple[int, ...]:
    """For each source the first one that gives the same object."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(source.get(unit, found)), i) for i, source in enumerate(sources))


@dataclass(frozen=True, eq=False)
class Contract:
    """All that a trace leaned on: `guards` in the order of the reads, so that each one's holder is guarded before it; tied
    parameters and buffers (`aliases`); `objects` that were reached, and by `groups` which of them are one; tensors that are
    inputs though no call hands them over, by the name of their node; what a program writes into: of the state (`written`), and
    of its inputs, by number (`into`); the pieces of `codes` that ran, and other libraries' `operators` and the `memos` that
    these called."""

    guards: tuple[Guard, ...] = ()
    aliases: tuple[tuple[Source, Source], ...] = ()
    objects: tuple[Source, ...] = ()
    groups: tuple[int, ...] = ()
    tensors: Mapping[str, Source] = field(default_factory=dict)
    modes: Modes = field(default_factory=Modes)
    written: tuple[Source, ...] = ()
    into: tuple[int, ...] = ()
    codes: frozenset[CodeType] = frozenset()
    operators: frozenset[str] = frozenset()
    memos: tuple[Memo, ...] = ()
    first: dict[Source, int] = field(default_factory=dict)  # ids of what the first unit that was bound had

    @property
    def writes(self) -> bool:
        """If a program writes into memory that others have too."""
        return bool(self.written or self.into)

    def objects_read(self, unit: nn.Module) -> Iterator[Any]:
        """What the guards are about: objects that they look into and what they find there, with the dicts and cells of these."""
        found: dict[Source, Any] = {}
        for guard in self.guards:
            guard.source.get(unit, found)
        for value in found.values():
            yield value
            yield own_attributes(value)
            if isinstance(value, nn.Module):
                yield from own_attributes(value).values()
            elif isinstance(value, FunctionType):
                yield from value.__closure__ or ()

    def bind(self, unit: nn.Module, *, again: bool = True) -> Bound | None:
        """The contract for one unit; None where something else is found than the trace read. Not `again`, it holds for this call
        alone: to write the check for later ones takes longer than to look, and many units are called once."""
        found: dict[Source, Any] = {}
        if not self.find(unit, self.guards, found):
            return None
        tensors = {name: source.get(unit, found) for name, source in self.tensors.items()}
        unchanged = _not_known
        if again:
            unchanged = check_of([guard.source for guard in self.guards], self.aliases, found, self.first)
        if not self.first:
            self.first.update((source, id(value)) for source, value in found.items())
        return Bound(self, tensors, unchanged, self.modes.hold, self.memory(found))

    def memory(self, found: Mapping[Source, Any]) -> Memory:
        """The memory of the state that was found, if a program writes anywhere."""
        if not self.writes:
            return Memory((), frozenset(), ())
        tensors = {id(value): value for value in found.values() if isinstance(value, torch.Tensor)}
        places = list(tensors)
        return Memory(tuple(tensors.values()), frozenset(places.index(id(found[s])) for s in self.written), self.into)

    def find(self, unit: nn.Module, guards: Iterable[Guard], found: dict[Source, Any]) -> bool:
        """Returns if a unit has what the trace read, as far as these guards say. `found` is what is known of it and gets more."""
        if not self.modes.hold() or not all(guard.holds(guard.source.get(unit, found)) for guard in guards):
            return False
        if any(one.get(unit, found) is not other.get(unit, found) for one, other in self.aliases):
            return False
        return grouped(self.objects, unit, found) == self.groups


def _not_known() -> bool:
    return False


@dataclass(frozen=True, eq=False)
class Bound:
    """A contract that held for one unit: `holds` says if nothing of it has been put in another's place since then."""

    contract: Contract
    tensors: Mapping[str, torch.Tensor]
    unchanged: Callable[[], bool]
    modes: Callable[[], bool]
    memory: Memory

    def holds(self) -> bool:
        """Returns if a program holds for the unit as it is now."""
        return self.unchanged() and self.modes()

    def constants(self, traced: Sequence[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
        """The tensors that a program takes though no call hands them over: those of the unit's state as they are now."""
        return [self.tensors.get(name, tensor) for name, tensor in traced]
