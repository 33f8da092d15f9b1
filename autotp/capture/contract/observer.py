"""Observing: while a unit's Python runs for a trace, every read of state is noted with the source it was found at.

The classes of the objects that are reached get an attribute access that tells (and is taken back afterwards), containers are
noted with all that is in them, and the instructions that run say which globals are read. What cannot be observed is an error.

An observer is made of layers, a file each: what is noted (notes), what is held once it was read (reach), how attributes are
found (attributes), what is read off Python modules by name (names), and what runs (instructions).
"""

from __future__ import annotations

import contextvars
import gc
import itertools
import random
import threading
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

import numpy
import torch
from torch import nn

from ...errors import TraceError
from ...outside.garbage import collect
from .conversions import needless_conversions
from .frames import Tracing
from .guards import Contract, Guard, grouped
from .instructions import Instructions
from .libraries import is_of_library
from .numbers import symbols_are_numbers
from .probes import attributes_of, code_of, lineage, variable_state
from .snapshot import Change
from .source import Source, own_attributes
from .tensors import telling
from .values import NAMES, as_expected, memory_of

T = TypeVar("T")


class WritesError(TraceError):
    """The traced code writes state. `changes` are what it wrote where it may write once, and find it there from then on."""

    def __init__(self, reason: str, changes: tuple[Change, ...]) -> None:
        super().__init__(reason)
        self.changes = changes


class Observer(Instructions):
    """What the Python of one trace reads and writes: `begin` and what follows happen while it is `watching`, and `contract`
    is what came of it."""

    def begin(self, leaves: Sequence[Any], kinds: Iterable[type] = ()) -> None:
        """The unit's forward is about to run, with these arguments: functions among them may run in it, and a call's key
        says which ones they are. `kinds` are the classes of objects among them."""
        if (stranger := self.modes.stranger()) is not None:
            self.refuse(f"{stranger} watches the functions of torch, and a program calls others")
        self.note(self.fixed(torch.Tensor), "probe", attributes_of)  # nobody follows what is asked of tensors
        for part, path in list(self.parts.values()):
            self._reach_class(type(part), self.step(self._part_source(path), "type"))
        own = own_attributes(self.twins[id(self.live)]).get("forward")
        if own is not None:
            self.reach(own, self.fixed(own))
        else:
            self._reach_code(*self._class_attribute(self.live, "forward", self.root))
        for leaf in leaves:
            if callable(leaf) or isinstance(leaf, Enum):
                self.reach(leaf, self.fixed(leaf))
        for kind in kinds:
            self.given(kind)

    def given(self, kind: type) -> None:
        """The traced code gets an object of a class: Python asks the class what the object can do, and tells nobody."""
        if kind in self.kinds:
            return
        self.kinds.add(kind)
        own = [each for each in kind.__mro__ if not is_of_library(each)]
        for each in own:
            self.note(self.fixed(each), "probe", code_of)
        if own:
            self.note(self.fixed(kind), "probe", lineage)

    def came(self, path: str, part: nn.Module, own: nn.Module) -> None:
        """A module is there that was not when it began, in the place of one of the unit's."""
        source = self.add_part(path, part, own)
        if not self.watch.add_class(type(part)):
            self._read_all(own, source)

    def told(self, kind: type) -> None:
        """The traced code gets the class of an object of the call, and may read what that has."""
        self._reach_class(kind, self.fixed(kind))

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run the traced code in a copy of the context: variables of the context that it sets stay as they were."""

        def inside() -> T:
            result = function(*args, **kwargs)
            for variable, before, source in self.variables:
                if variable_state(variable) is not before:
                    self.refuse(f"it sets {source}, which outlives the call")
            return result

        return contextvars.copy_context().run(inside)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe what runs in this thread. State that was written is put back. Raises TraceError if there was any, or if
        something cannot be observed, unless the observer is `lenient`."""
        collecting = gc.isenabled()
        gc.disable()  # else code that runs whenever memory is collected would count as the model's
        collect(0)  # what is young from here on, the traced code has made
        try:
            # What is there for the time of a trace is there as well when what was written is put back: else it would seem to
            # have been written, too.
            with (
                torch.compiler.set_stance("force_eager"),
                torch._dynamo.config.patch(error_on_nested_fx_trace=False),
                symbols_are_numbers(),
                needless_conversions(),
            ):
                written = yield from self._watched()
        finally:
            if collecting:
                gc.enable()
            if any(change.value is warnings.filters for change in self.snapshots.changed):
                # Else Python goes by what it found with the others.
                getattr(warnings, "_filters_mutated", lambda: None)()
        if self.lenient:
            return
        self.refuse_foreign_holders()
        if self.problem is not None:
            raise TraceError(self.problem)
        if written:
            raise WritesError(f"it changes {written[0]}, which the next call reads", self._kept_for_all(written))

    def _watched(self) -> Generator[None, None, list[str]]:
        """The observed code runs where this yields; returns what it has written, which is put back."""
        try:
            for each, name in ((random._inst, "Python's"), (numpy.random.mtrand._rand, "numpy's")):
                self.snapshots.take_random(each, lambda name=name: f"the state of {name} random generator")  # type: ignore[misc]
            for part, source in list(self.known.values()):
                if not self.watch.add_class(type(part)):
                    self._read_all(self.parts[id(part)][0], source)
            self.snapshots.take_names(vars(warnings), ["filters"], lambda: "warnings")
            self.snapshots.take(warnings.filters, lambda: "the filters of warnings")
            self.watch.begin(self)
            with telling(self, threading.get_ident()), Tracing(self):
                yield
        finally:
            self.watch.end()
            written = self.snapshots.restore(self.parts)
        return written

    def _kept_for_all(self, written: Sequence[str]) -> tuple[Change, ...]:
        """What was written, if all of it is kept in objects that are nobody's own, and nothing of the trace is in it: such as
        what a library finds out once for all."""
        changed = self.snapshots.changed
        own = any(self._is_of_unit(change) or change.holds_any(self.parts) for change in changed)
        return () if own or len(changed) != len(written) else tuple(changed)

    def _is_of_unit(self, change: Change) -> bool:
        source: Source | None = self.known.get(id(change.value), (None, self.root))[1]
        while source is not None and source.parent is not None:
            source = source.parent
        return source is self.root

    def contract(
        self, constants: Mapping[str, torch.Tensor], written: Collection[str], given: Sequence[torch.Tensor]
    ) -> Contract:
        """What was read, as guards; of a graph's constants, those that are read from state. `written` are the state and the
        inputs into which the graph writes, by their names in it, and `given` are the inputs.

        Raises TraceError if it writes where something else lies that it reads.
        """
        found: dict[Source, Any] = {}
        for source, name in itertools.product(self.having_names, sorted(self.named.intersection(NAMES))):
            self.note(source, "slot", name)
        guards = tuple(Guard(source, as_expected(source.get(self.live, found))) for source in self.order)
        tensors = {name: self.tensors[id(t)][1] for name, t in constants.items() if id(t) in self.tensors}
        for name in tensors:
            self._check_wants_no_gradient(constants[name], tensors[name])
        if any(memory_of(t) in self.memory for name, t in constants.items() if name not in tensors):
            raise TraceError("it has a second tensor over the memory of one that it keeps")
        groups = grouped(self.objects, self.live, found)
        live: dict[str, torch.Tensor] = dict(self.live.named_parameters(remove_duplicate=False))
        state = {**live, **dict(self.live.named_buffers(remove_duplicate=False)), **constants}
        ids = {id(state[name]) for name in written if name in state}
        contract = Contract(
            guards,
            tuple(self.aliases()),
            tuple(self.objects),
            groups,
            tensors,
            self.modes,
            written=tuple(source for source, value in found.items() if id(value) in ids),
            into=tuple(i for i in range(len(given)) if f"tensor_{i}" in written),
            codes=frozenset(self.ran),
            operators=frozenset(self.operators),
            memos=tuple(self.snapshots.caches),
        )
        if not contract.memory(found).is_apart(given):
            raise TraceError("it writes where something else lies that it reads")
        return contract


class LenientObserver(Observer):
    """One that refuses nothing, of a run that only shows how a model calls its blocks."""

    lenient = True
