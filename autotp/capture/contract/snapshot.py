"""Snapshots: state as it was when the traced code reached it, to find what was written and to put it back."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import types
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

from .answers import holder, is_held
from .libraries import is_of_library
from .memo import Memo, note
from .source import MISSING, own_attributes
from .states import difference, give, put, state_of, written
from .values import kind_of


@dataclass(frozen=True)
class Change:
    """What was written to one object."""

    value: Any
    before: dict[str, Any]
    after: dict[str, Any]

    def redo(self) -> None:
        """Write it again."""
        give(self.value, self.after)

    def undo(self) -> None:
        """Put back what was there."""
        give(self.value, self.before)

    def holds_any(self, stand_ins: Container[int]) -> bool:
        """Returns if something of the trace's own was written."""
        old = {id(part) for held in self.before.values() for part in _parts(held)}
        new = [part for held in self.after.values() for part in _parts(held)]
        return any(id(part) not in old and _is_of_trace(part, stand_ins) for part in new)


def _parts(held: Any) -> list[Any]:
    return [*held, *held.values()] if isinstance(held, dict) else [held] if isinstance(held, bytes) else list(held)


class Snapshots:
    """Copies, one level deep, of what was reached. Each has a function that says in words what it is."""

    def __init__(self) -> None:
        self.taken: dict[int, tuple[Any, Any, Callable[[], str]]] = {}
        self.entries: list[tuple[dict[str, Any], str, Any]] = []
        self.names: list[tuple[dict[str, Any], dict[str, Any], Callable[[], str]]] = []
        self.caches: list[Memo] = []
        self.cells: list[tuple[types.CellType, Any]] = []
        self.classes: dict[type, tuple[dict[str, Any], Callable[[], str]]] = {}
        self.numbers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.instead: dict[int, tuple[dict[str, Any], list[str]]] = {}  # what the trace has put among globals
        self.random: dict[int, tuple[Any, Any, Callable[[], str]]] = {}
        self.foreseen: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.locks: list[tuple[Any, str, Callable[[], str]]] = []
        self.changed: list[Change] = []  # of those that were taken, once they are put back

    def take(self, value: Any, name: Callable[[], str]) -> None:
        """Remember the present state of a container, an object, an array, or a module with its parameters and buffers."""
        if id(value) not in self.taken and type(value) not in (tuple, frozenset):
            _, state = self.foreseen.get(id(value)) or (value, self._state_of(value))
            self.taken[id(value)] = value, state, name

    def foresee(self, value: Any) -> None:
        """Copy the present state of an object, and of what it holds, for the case that it is to be remembered later on."""
        for each in (value, *own_attributes(value).values()):
            if kind_of(each) in ("object", "container"):
                self.foreseen[id(each)] = each, self._state_of(each)

    def put_instead(self, namespace: dict[str, Any], name: str, value: Any) -> None:
        """Put a trace's own thing among globals that have nothing under that name. The model has not written it."""
        self.instead.setdefault(id(namespace), (namespace, []))[1].append(name)
        namespace[name] = value

    def _state_of(self, value: Any) -> dict[str, Any]:
        state = state_of(value)
        for place, part in ((value, "items"), (own_attributes(value), "attributes")):
            for name in self.instead.get(id(place), (place, ()))[1]:
                state[part].pop(name, None)
        return state

    def take_entry(self, namespace: dict[str, Any], name: str) -> None:
        """Remember one global."""
        self.entries.append((namespace, name, namespace.get(name, MISSING)))

    def take_names(self, namespace: dict[str, Any], names: Iterable[str], name: Callable[[], str]) -> None:
        """Remember what a Python module has under some names."""
        self.names.append((namespace, {each: namespace.get(each, MISSING) for each in names}, name))

    def take_cache(self, function: Any) -> None:
        """Remember which results a memoising function keeps."""
        self.caches.append(note(function))

    def take_cell(self, cell: types.CellType) -> None:
        """Remember a variable of a closure."""
        self.cells.append((cell, cell.cell_contents))

    def take_class(self, kind: type, name: Callable[[], str]) -> None:
        """Remember what a class, and those that it inherits from, have under their names."""
        for each in kind.__mro__:
            tells = is_of_library(each) and issubclass(each, torch.Tensor)  # for the time of a trace
            if each not in self.classes and each.__flags__ & _HEAP_TYPE and not tells:
                self.classes[each] = dict(vars(each)), name

    def take_numbers(self, tensor: torch.Tensor) -> None:
        """Remember what is in a tensor that is about to be written to."""
        with _plainly():
            self.numbers.append((tensor.data, tensor.detach().clone()))

    def take_random(self, generator: Any, name: Callable[[], str]) -> None:
        """Remember the state of a random generator."""
        if id(generator) not in self.random:
            self.random[id(generator)] = generator, _drawn(generator), name

    def take_lock(self, lock: Any, name: Callable[[], str]) -> None:
        """Remember who holds a lock, and how often."""
        self.locks.append((lock, holder(lock), name))

    def restore(self, stand_ins: Container[int]) -> list[str]:
        """Put back what was written; returns what it was. Numbers in tensors are put back and not spoken of: a program writes
        them itself. `stand_ins` are the ids of what the trace had in the place of modules."""
        with _plainly():
            for tensor, numbers in reversed(self.numbers):
                tensor.copy_(numbers)
        for cell, content in reversed(self.cells):
            cell.cell_contents = content
        for namespace, key, old in reversed(self.entries):
            put(namespace, key, old)
        for namespace, names in self.instead.values():
            for name in names:
                namespace.pop(name, None)
        found = [*self._restore_values(), *self._restore_names(), *self._restore_classes(), *self._restore_random()]
        return [*found, *self._restore_caches(stand_ins), *self._restore_locks()]

    def forget_results(self) -> None:
        """Take out what memoising functions have come to keep: what they did beside it was put back, and is to be done again."""
        for memo in self.caches:
            for key in memo.added():
                memo.forget(key)

    def _restore_values(self) -> Iterator[str]:
        for value, before, name in reversed(self.taken.values()):  # a module and its names may both be there
            now = state_of(value)
            found = difference(before, now)
            if found is not None:
                self.changed.append(Change(value, before, now))
                yield name() + found
                give(value, before)

    def _restore_names(self) -> Iterator[str]:
        for namespace, before, name in reversed(self.names):
            for key in written(before, {key: namespace.get(key, MISSING) for key in before}):
                yield f"{name()}.{key}"
                put(namespace, key, before[key])

    def _restore_classes(self) -> Iterator[str]:
        for kind, (before, name) in self.classes.items():
            now = vars(kind)
            for key in [k for k in {**before, **now} if k not in _UNSAID and before.get(k) is not now.get(k)]:
                yield f"{key} of the class of {name()}"
                if key in before:
                    setattr(kind, key, before[key])
                else:
                    delattr(kind, key)

    def _restore_random(self) -> Iterator[str]:
        for generator, state, name in self.random.values():
            if pickle.dumps(_drawn(generator)) != pickle.dumps(state):
                yield name()
                _set_drawn(generator, state)

    def _restore_locks(self) -> Iterator[str]:
        """Only those that are held now: one that was held as it was met may have been so within the trace alone."""
        for lock, before, name in self.locks:
            if holder(lock) != before and is_held(lock):
                yield name()
                with suppress(RuntimeError):  # by another thread
                    while holder(lock) != before:
                        lock.release()

    def _restore_caches(self, stand_ins: Container[int]) -> Iterator[str]:
        """Results for a trace's own tensors and modules nobody finds again; any others are what the model would have kept."""
        for memo in self.caches:
            if memo.has_dropped():
                yield f"what {memo.name} keeps"
            for key, result in memo.added().items():
                if _is_of_trace(key, stand_ins) or _is_of_trace(result, stand_ins):
                    yield f"what {memo.name} keeps"
                    memo.forget(key)


@contextmanager
def untraced() -> Iterator[None]:
    """Without what a trace makes of operators."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


@contextmanager
def _plainly() -> Iterator[None]:
    with untraced(), torch.no_grad():
        yield


def _is_of_trace(value: Any, stand_ins: Container[int], depth: int = 4) -> bool:
    """Returns if a value is, or has in it, a tensor or something that stands for a module."""
    if isinstance(value, torch.Tensor) or id(value) in stand_ins:
        return True
    is_code = isinstance(value, (type, types.ModuleType, types.FunctionType))
    inside = gc.get_referents(value) if depth and not is_code else []
    return any(_is_of_trace(part, stand_ins, depth - 1) for part in inside)


_HEAP_TYPE = 1 << 9
# What Python itself puts into a class where a copy is made, and what is another one while a trace observes.
_UNSAID = frozenset({"__slotnames__", "__getattribute__"})


def _drawn(generator: Any) -> Any:
    """The state of a random generator, as it is set back."""
    if isinstance(generator, numpy.random.Generator):
        return copy.deepcopy(generator.bit_generator.state)
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_drawn(generator: Any, state: Any) -> None:
    if isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)
