"""Guards: what a trace read, as a list, and the check of it that a unit's calls make, as straight Python made from that list."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import nn

from .modes import Modes
from .source import MISSING, Source, content, own_attributes, static_attribute
from .values import CONTAINERS, agree, code_of


@dataclass(frozen=True, eq=False)
class Guard:
    """What must be found at a source for a program to hold."""

    source: Source
    expected: Any

    def holds(self, now: Any) -> bool:
        """Returns if what is found there now is the same to a program."""
        if self.source.kind == "content":
            return bool(type(now) is type(self.expected) and now == self.expected)
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
    inputs though no call hands them over, by the name of their node."""

    guards: tuple[Guard, ...] = ()
    aliases: tuple[tuple[Source, Source], ...] = ()
    objects: tuple[Source, ...] = ()
    groups: tuple[int, ...] = ()
    tensors: Mapping[str, Source] = field(default_factory=dict)
    modes: Modes = field(default_factory=Modes)

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

    def bind(self, unit: nn.Module) -> Bound | None:
        """The contract for one unit; None where something else is found than the trace read."""
        found: dict[Source, Any] = {}
        if not self.modes.hold():
            return None
        for guard in self.guards:
            if not guard.holds(guard.source.get(unit, found)):
                return None
        if any(one.get(unit, found) is not other.get(unit, found) for one, other in self.aliases):
            return None
        if grouped(self.objects, unit, found) != self.groups:
            return None
        tensors = {name: source.get(unit, found) for name, source in self.tensors.items()}
        return Bound(self, tensors, _checker(self, found, unit), self.modes.hold)


@dataclass(frozen=True, eq=False)
class Bound:
    """A contract that held for one unit: `holds` says if nothing of it has been put in another's place since then."""

    contract: Contract
    tensors: Mapping[str, torch.Tensor]
    unchanged: Callable[[], bool]
    modes: Callable[[], bool]

    def holds(self) -> bool:
        """Returns if a program holds for the unit as it is now."""
        return self.unchanged() and self.modes()

    def constants(self, traced: Sequence[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
        """The tensors that a program takes though no call hands them over: those of the unit's state as they are now."""
        return [self.tensors.get(name, tensor) for name, tensor in traced]


class _Text:
    """The check as text, with the objects that it names."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.values: list[Any] = []
        self.terms: dict[str, None] = {}

    def name(self, value: Any) -> str:
        if id(value) not in self.names:
            self.names[id(value)] = f"v{len(self.values)}"
            self.values.append(value)
        return self.names[id(value)]

    def add(self, term: str) -> None:
        self.terms.setdefault(term)

    def compiled(self) -> Callable[[], bool]:
        given = ", ".join(f"v{i}" for i in range(len(self.values)))
        lines = [
            f"def bind({given}):",
            " def unchanged():",
            "  try:",
            f"   return {' and '.join(self.terms) or 'True'}",
        ]
        text = "\n".join(
            [*lines, "  except (LookupError, AttributeError, ValueError, TypeError, RuntimeError):", "   return False"]
        )
        made: Callable[[], bool] = _made(text + "\n return unchanged\n")(*self.values)
        return made


_factories: dict[str, Callable[..., Any]] = {}


def _made(text: str) -> Callable[..., Any]:
    if text not in _factories:
        scope: dict[str, Any] = {}
        exec(compile(text, "<autotp guards>", "exec"), scope)
        _factories[text] = scope["bind"]
    return _factories[text]


def _checker(contract: Contract, found: Mapping[Source, Any], unit: nn.Module) -> Callable[[], bool]:
    """A function that compares what is there with what was found: by identity, since state that nobody changed stays the
    object that it was."""
    text = _Text()
    for guard in contract.guards:
        source = guard.source
        if source.parent is not None:
            holder = found[source.parent]
            _TERMS[source.kind](text, holder, source.key, found[source])
    for one, other in contract.aliases:
        if one.kind in ("parameter", "buffer") and one.parent is not None and other.parent is not None:
            first, second = (_place(text, s, found[s.parent]) for s in (one, other) if s.parent is not None)
            text.add(f"{first} is {second}")
    return text.compiled()


def _place(text: _Text, source: Source, holder: Any) -> str:
    return f"{text.name(_held(holder, source.kind))}[{source.key!r}]"


def _held(holder: Any, kind: str) -> Any:
    return holder._parameters if kind == "parameter" else holder._buffers if kind == "buffer" else holder


def _entry(text: _Text, entries: Any, key: Any, value: Any) -> None:
    held, name = text.name(entries), repr(key) if isinstance(key, (str, int)) else text.name(key)
    if value is MISSING:
        text.add(f"{name} not in {held}")
    else:
        text.add(f"{held}[{name}] is {text.name(value)}")


def _attribute(text: _Text, holder: Any, key: str, value: Any) -> None:
    _entry(text, own_attributes(holder), key, value)
    if isinstance(value, torch.Tensor):
        text.add(f"{text.name(value)}.requires_grad is {value.requires_grad}")


def _tensor_entry(kind: str) -> Callable[[_Text, Any, str, Any], None]:
    def term(text: _Text, holder: Any, key: str, value: Any) -> None:
        entries = _held(holder, kind)
        _entry(text, entries, key, value)
        if isinstance(value, torch.Tensor) and kind == "buffer":
            text.add(f"{text.name(value)}.requires_grad is {value.requires_grad}")

    return term


def _item(text: _Text, holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, type(os.environ)):
        name, variables = holder.encodekey(key), vars(holder)["_data"]
        _entry(text, variables, name, variables.get(name, MISSING))
    elif not isinstance(holder, tuple):  # which cannot change
        _entry(text, holder, key, value)


def _hooks(text: _Text, holder: nn.Module, key: str, value: tuple[Any, ...]) -> None:
    hooks = f"{text.name(own_attributes(holder))}[{key!r}]"
    text.add(
        f"tuple({hooks}.items()) == {text.name(tuple(own_attributes(holder)[key].items()))}"
        if value
        else f"not {hooks}"
    )


def _global(text: _Text, holder: Any, key: str, value: Any) -> None:
    if value is not MISSING or not str(holder.get("__name__")).startswith("torch."):  # else one of Python's own names
        _entry(text, holder, key, value)


def _class(text: _Text, holder: type, key: str, value: Any) -> None:
    if value is MISSING and holder.__module__.startswith("torch."):
        return  # nobody adds to torch's classes what hides what their objects hold
    if value is MISSING:
        _absent(text, holder, key, value)
    elif getattr(holder, key, MISSING) is value:
        text.add(f"{text.name(holder)}.{key} is {text.name(value)}")
    else:
        owner = static_attribute(holder, key)[1]
        text.add(f"{text.name(vars(owner))}[{key!r}] is {text.name(value)}")


def _absent(text: _Text, holder: type, key: str, value: Any) -> None:
    text.add(f"not hasattr({text.name(holder)}, {key!r})")


def _slot(text: _Text, holder: Any, key: str, value: Any) -> None:
    if value is MISSING:
        text.add(f"not hasattr({text.name(holder)}, {key!r})")
    else:
        text.add(f"{text.name(holder)}.{key} is {text.name(value)}")


def _cell(text: _Text, holder: Any, key: str, value: Any) -> None:
    cell = holder.__closure__[holder.__code__.co_freevars.index(key)]
    if value is not MISSING:
        text.add(f"{text.name(cell)}.cell_contents is {text.name(value)}")


def _type(text: _Text, holder: Any, key: None, value: type) -> None:
    if not isinstance(holder, type) and type(holder).__flags__ & _HEAP_TYPE:  # of others it cannot change
        text.add(f"type({text.name(holder)}) is {text.name(type(holder))}")


_HEAP_TYPE = 1 << 9


def _content(text: _Text, holder: Any, key: None, value: Any) -> None:
    if isinstance(holder, (tuple, frozenset)):
        return
    if not holder and isinstance(holder, CONTAINERS):
        text.add(f"not {text.name(holder)}")
    elif isinstance(value, int):
        text.add(f"len({text.name(holder)}) == {value}")
    elif isinstance(holder, dict):
        text.add(f"tuple({text.name(holder)}) == {text.name(value)}")
    else:
        text.add(f"{text.name(content)}({text.name(holder)}) == {text.name(value)}")


def _probe(text: _Text, holder: Any, key: Callable[[Any], Any], value: Any) -> None:
    if key is code_of:
        text.add(f"{text.name(vars(holder))} == {text.name(dict(vars(holder)))}")
        return
    text.add(f"{text.name(key)}({text.name(holder)}) == {text.name(value)}")


def _inside(text: _Text, holder: Any, key: Callable[[Any], Any], value: Any) -> None:
    text.add(f"{text.name(key)}({text.name(holder)}) is {text.name(value)}")


_TERMS: Mapping[str, Callable[[_Text, Any, Any, Any], None]] = {
    "part": lambda text, holder, key, value: None,
    "parameter": _tensor_entry("parameter"),
    "buffer": _tensor_entry("buffer"),
    "attribute": _attribute,
    "slot": _slot,
    "type": _type,
    "class": _class,
    "absent": _absent,
    "item": _item,
    "hooks": _hooks,
    "global": _global,
    "cell": _cell,
    "content": _content,
    "probe": _probe,
    "inside": _inside,
}
