"""Sources: where the Python of a unit found a value, so that it can be looked up again, also in an equal unit.

A source is a step from another source: an attribute of an object, an item of a container, the content of a function's cell.
The first step is the unit's module, or an object that is the same for all units (the globals of a Python module, a class).
"""

from __future__ import annotations

import builtins
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType, MemberDescriptorType
from typing import Any

from torch import nn

from .actions import Item


class Missing:
    """Stands for what is not there."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


class Source:
    """One step: `kind` says how `key` is looked up in what `parent` gives."""

    __slots__ = ("key", "kind", "parent")

    def __init__(self, parent: Source | None, kind: str, key: Any = None) -> None:
        self.parent, self.kind, self.key = parent, kind, key

    def get(self, unit: nn.Module, known: dict[Source, Any] | None = None) -> Any:
        """What is found there now, for a unit; MISSING if there is nothing. `known` keeps what was found on the way."""
        known = {} if known is None else known
        if self not in known:
            holder = unit if self.parent is None else self.parent.get(unit, known)
            known[self] = MISSING if holder is MISSING else STEPS[self.kind](holder, self.key)
        return known[self]

    def __str__(self) -> str:
        if self.kind == "unit":
            return "the block"
        if self.kind == "fixed":
            return str(
                getattr(self.key, "__qualname__", None) or getattr(self.key, "__name__", type(self.key).__name__)
            )
        assert self.parent is not None
        if self.kind == "global":
            return f"the global {self.key}"
        return _TEXTS.get(self.kind, "{parent}.{key}").format(parent=self.parent, key=self.key)


_TEXTS = {
    "item": "{parent}[{key!r}]",
    "content": "{parent}",
    "names": "{parent}",
    "order": "{parent}",
    "class": "{parent}",
    "absent": "{parent}",
    "cell": "the variable {key} of {parent}",
    "probe": "{parent}",
    "inside": "{parent}",
    "hooks": "a hook on {parent}",
}


def static_attribute(kind: type, name: str) -> tuple[Any, type | None]:
    """What a class has under a name, as it was written there, and which class in its order has it."""
    for owner in kind.__mro__:
        if name in vars(owner):
            return vars(owner)[name], owner
    return MISSING, None


def is_a(value: Any, classes: Any) -> bool:
    """`isinstance` that goes by the class alone: Python would ask the value too, and many a model's has Python that answers."""
    return issubclass(type(value), classes)


def own_attributes(value: Any) -> dict[str, Any]:
    """The dict of an object's attributes itself, whatever its class does to attribute access."""
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return vars(value) if isinstance(value, threading.local) else {}
    return found


def slots_of(kind: type) -> list[str]:
    """The names of the slots that objects of a class have: a private one is kept under another name than was written."""
    return [
        name
        for each in kind.__mro__
        if "__slots__" in vars(each)
        for name, held in vars(each).items()
        if isinstance(held, MemberDescriptorType) and held.__objclass__ is each
    ]


def content(value: Any, key: Any = None) -> Any:
    """What tells a container from another one besides its items: the length, or the keys of a dict and all of a set, in their
    order."""
    return tuple(value) if isinstance(value, (dict, set, frozenset)) else len(value)


def _item(holder: Any, key: Any) -> Any:
    try:
        if isinstance(holder, Mapping):
            return dict.get(holder, key, MISSING) if isinstance(holder, dict) else holder.get(key, MISSING)
        return (list if isinstance(holder, list) else deque if isinstance(holder, deque) else tuple).__getitem__(
            holder, key
        )
    except (LookupError, TypeError):
        return MISSING


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of(module: nn.Module, name: str) -> tuple[Any, ...]:
    """The hooks of one kind on a module, each with how it is called; the numbers that torch gives them say nothing."""
    attributes = own_attributes(module)
    if not attributes[name]:  # as of most
        return ()
    manners = [attributes.get(name + manner, ()) for manner in ("_with_kwargs", "_always_called")]
    return tuple((hook, *(number in manner for manner in manners)) for number, hook in attributes[name].items())


def _cell(function: Any, name: str) -> Any:
    try:
        return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents
    except (AttributeError, TypeError, ValueError, IndexError):
        return MISSING


def _slot(holder: Any, name: str) -> Any:
    try:
        if isinstance(holder, (FunctionType, type)):
            return getattr(holder, name, MISSING)
        return object.__getattribute__(holder, name)
    except AttributeError:
        return MISSING


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "unit": lambda holder, key: holder,
    "fixed": lambda holder, key: key,
    "part": lambda holder, key: holder._modules.get(key, MISSING),
    "parameter": lambda holder, key: holder._parameters.get(key, MISSING),
    "buffer": lambda holder, key: holder._buffers.get(key, MISSING),
    "hooks": hooks_of,
    "attribute": lambda holder, key: own_attributes(holder).get(key, MISSING),
    "slot": _slot,
    "type": lambda holder, key: type(holder),
    "class": lambda holder, key: static_attribute(holder, key)[0],
    "item": _item,
    "global": _item,
    "cell": _cell,
    "absent": lambda holder, key: static_attribute(holder, key)[0],
    "content": content,
    "names": lambda holder, key: tuple(own_attributes(holder)),
    "order": lambda holder, key: tuple(own_attributes(holder)[key]),
    "probe": lambda holder, key: key(holder),
    "inside": lambda holder, key: key(holder),
}


def _item_of(value: Any, key: Any) -> Any:
    if type(value) is dict and type(key) in (str, int):
        return value.get(key, MISSING)
    return (
        value[key] if type(value) in (tuple, list) and type(key) is int and -len(value) <= key < len(value) else MISSING
    )


def held_at(frame: FrameType, place: tuple[Any, ...]) -> Any:
    """What is held where an instruction loads it, without running any code: MISSING where that does not tell. `place` is the
    instruction, the variable, and the attributes and items that are read one off the other; `type` alone is any class."""
    if place == ("type",):
        return type
    if not place:
        return MISSING
    instruction, variable, *steps = place
    space = frame.f_locals if instruction.startswith(("LOAD_FAST", "LOAD_DEREF")) else frame.f_globals
    value = space.get(variable, vars(builtins).get(variable, MISSING))
    for name in steps:
        if isinstance(name, Item):
            value = _item_of(value, name.key)
            continue
        spaces: list[Mapping[str, Any]] = [own_attributes(value)]
        if isinstance(value, nn.Module):
            spaces += [value._parameters, value._buffers, value._modules]
        spaces += map(vars, value.__mro__ if isinstance(value, type) else type(value).__mro__)
        value = next((each[name] for each in spaces if name in each), MISSING)
        if hasattr(type(value), "__get__"):  # code, which says what there is
            return MISSING
    return value
