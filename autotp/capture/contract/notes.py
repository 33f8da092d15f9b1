"""What a trace's observer writes down: the sources that were read, in order, and why there can be no program."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import nn

from ...errors import TraceError
from ..clone import copied_in
from ..later import pairs
from .modes import Modes
from .snapshot import Snapshots
from .source import Source, own_attributes


class Notes:
    """What the Python of one trace reads and writes.

    `twin` is what is traced, `live` the unit's module, which it stands for: sources are about the latter. Attributes
    (module path, name) in `varying` are inputs of the trace, and not guarded; `modes` are those of the call.
    """

    lenient = False  # as a run is that makes no program, of copies that are thrown away

    def __init__(self, twin: nn.Module, live: nn.Module, varying: frozenset[tuple[str, str]], modes: Modes) -> None:
        self.live, self.varying, self.modes = live, varying, modes
        self.sources: dict[tuple[Any, ...], Source] = {}
        self.order: dict[Source, None] = {}  # as they were read
        self.known: dict[int, tuple[Any, Source]] = {}  # objects by identity, kept alive
        self.objects: list[Source] = []
        self.holders: list[tuple[Any, nn.Module]] = []  # what has a module of the unit in it, with that
        self.problem: str | None = None
        self.acting: dict[str, Any] = {}  # the globals of the code that runs
        self.snapshots = Snapshots()
        self.root = Source(None, "unit")
        self.twins: dict[int, nn.Module] = {}
        self.parts: dict[int, tuple[nn.Module, str]] = {}
        # Lists and the like in which parameters of the unit have others in their place.
        self.held: frozenset[int] = frozenset()
        for path, part, own in pairs(twin, live):
            self.add_part(path, part, own)

    def add_part(self, path: str, part: nn.Module, own: nn.Module) -> Source:
        """A module stands for one of the unit's from now on."""
        source = self._part_source(path)
        self.known[id(part)] = part, source
        self.parts[id(part)] = own, path
        self.twins[id(own)] = part
        if not self.lenient:
            self.snapshots.take(part, source.__str__)
        self.snapshots.take_class(type(part), source.__str__)
        return source

    def _part_source(self, path: str) -> Source:
        source = self.root
        for name in path.split(".") if path else ():
            source = self.step(source, "part", name)
        return source

    @functools.cached_property
    def own(self) -> dict[int, Source]:
        """The unit's parameters."""
        named = [
            (parameter, self.step(self._part_source(path), "parameter", name))
            for path, part in self.live.named_modules()
            for name, parameter in part._parameters.items()
        ]
        return {id(parameter): source for parameter, source in reversed(named)}

    def reach_own(self, value: nn.Parameter, source: Source) -> None:
        """A parameter of the unit, where the trace has what stands for it: that it is this one, and is there, is guarded."""
        own = self.own[id(value)]
        self.order.setdefault(own)
        self.objects += [source, own]

    def aliases(self) -> Iterator[tuple[Source, Source]]:
        """Which of the unit's parameters and buffers are one: equal ones are one in the trace, too."""
        first: dict[int, Source] = {}
        for path, part in self.live.named_modules():
            parent = self._part_source(path)
            for kind, held in (("parameter", part._parameters), ("buffer", part._buffers)):
                for name, tensor in held.items():
                    if tensor is not None:
                        source = self.step(parent, kind, name)
                        known = first.setdefault(id(tensor), source)
                        if known is not source:
                            yield known, source

    def step(self, parent: Source | None, kind: str, key: Any = None) -> Source:
        name = (parent, kind, key if kind != "fixed" else id(key))
        if name not in self.sources:
            self.sources[name] = Source(parent, kind, key)
        return self.sources[name]

    def note(self, parent: Source | None, kind: str, key: Any = None) -> Source:
        """A read of a step from a source."""
        source = self.step(parent, kind, key)
        self.order.setdefault(source)
        return source

    def refuse(self, reason: str, moving: bool = False) -> None:
        """Say why there can be no program. The code that is traced may catch the error, so it is kept. What is `moving`
        cannot be put back, so the code does not go on in any case."""
        self.problem = self.problem or reason
        if moving or not self.lenient:
            raise TraceError(reason if self.lenient else self.problem)

    def forbid(self, reason: str) -> None:
        """As `refuse`, where an error would come amid what Python does by itself."""
        self.problem = self.problem or reason

    def refuse_part(self, value: nn.Module) -> None:
        """Of a module of the unit that the traced code has in its hands in place of the twin's."""
        self.refuse(
            f"it keeps {type(value).__name__}, a part of its own, where a trace cannot put another in its place"
        )

    def refuse_foreign_holders(self) -> None:
        """Of what holds modules of the unit, if it is nothing of which the twin has a copy with its own in their place."""
        if not self.holders:
            return
        copied = {
            id(value)
            for live, _ in self.parts.values()
            for value in copied_in(own_attributes(live), own_attributes(self.twins[id(live)]))
        }
        for having, part in self.holders:
            if id(having) not in copied:
                self.refuse_part(part)

    def fixed(self, value: Any) -> Source:
        """The source of an object that is the same for all units."""
        return self.step(None, "fixed", value)
