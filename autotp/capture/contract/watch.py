"""Attribute access that tells: classes and Python modules are given it for the time of a trace, and lose it afterwards."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from sys import _getframe
from threading import get_ident
from typing import Any, Protocol

from .frames import between, is_of_machinery, is_of_torch_modules
from .source import MISSING

_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # flags of classes, Include/object.h of CPython
_active: dict[int, Listener] = {}


class Listener(Protocol):
    """Whoever is told. One that is `lenient` does not hear of what torch's own modules ask."""

    lenient: bool

    @property
    def known(self) -> Mapping[int, Any]:
        """The objects that it wants to hear of, by identity."""

    @property
    def twins(self) -> Mapping[int, Any]:
        """The modules, by identity, in whose place it has others."""

    def attribute(self, value: Any, name: str, original: Callable[[Any, str], Any]) -> Any:
        """What an object has under a name; `original` looks it up."""


class Watch:
    """The classes and Python modules that tell."""

    def __init__(self) -> None:
        self.modules: list[types.ModuleType] = []
        self.patched: dict[type, Any] = {}
        self.told: dict[type, bool] = {}

    def begin(self, listener: Listener) -> None:
        """Tell a listener of what this thread does from now on."""
        _active[get_ident()] = listener

    def end(self) -> None:
        """Tell no more, and let go of the classes and Python modules."""
        _active.pop(get_ident(), None)
        for module in self.modules:
            before: Any = type(module).__base__
            module.__class__ = before
        for kind, own in reversed(self.patched.items()):
            if own is MISSING:
                del kind.__getattribute__
            else:
                kind.__getattribute__ = own  # type: ignore[method-assign]
        self.modules.clear()
        self.patched.clear()

    def add_module(self, module: types.ModuleType) -> None:
        """Let all attribute access to a Python module tell."""
        kind: Any = type(module)
        module.__class__ = _telling(kind)
        self.modules.append(module)

    def add_class(self, kind: type) -> bool:
        """Let all attribute access to objects of a class tell; returns if it does."""
        if kind in self.told:
            return self.told[kind]
        place = _place_to_tell(kind, self.patched)
        self.told[kind] = place is not None
        if place is not None and place not in self.patched:
            original: Any = place.__getattribute__
            own = vars(place).get("__getattribute__", MISSING)

            @between
            def tell(value: Any, name: str) -> Any:
                listener = _active.get(get_ident())
                if listener is None or (id(value) not in listener.known and id(value) not in listener.twins):
                    return original(value, name)
                if listener.lenient and is_of_torch_modules(_getframe(1).f_code.co_filename):
                    return original(value, name)
                return listener.attribute(value, name, original)

            place.__getattribute__ = tell  # type: ignore[method-assign, assignment]
            self.patched[place] = own
        return self.told[kind]


@functools.cache
def _telling(kind: Any) -> Any:
    """The class that a Python module of a class has while it is observed."""
    original: Any = kind.__getattribute__

    @between
    def tell(self: Any, name: str) -> Any:
        # Both read the same Python modules, and this function may be part of what one of them is read for.
        file = _getframe(1).f_code.co_filename
        if is_of_machinery(file):
            return original(self, name)
        listener = _active.get(get_ident())
        if listener is None or id(self) not in listener.known or (listener.lenient and is_of_torch_modules(file)):
            return original(self, name)
        return listener.attribute(self, name, original)

    return type(kind.__name__, (kind,), {"__getattribute__": tell, "__module__": kind.__module__})


def _place_to_tell(kind: type, patched: Mapping[type, Any]) -> type | None:
    """The class that gets the access that tells: the class itself or, where it has an access of its own, the one that this
    leaves the reading to. A base that was `patched` before does it. None if there is no such class."""

    def has_own_access(each: type) -> bool:
        return isinstance(patched.get(each, vars(each).get("__getattribute__")), types.FunctionType)

    order = list(kind.__mro__)
    own = [i for i, each in enumerate(order) if has_own_access(each)]
    behind = order[own[-1] + 1 :] if own else order
    place = next((each for each in behind if each in patched), next(iter(behind), object))
    return place if place.__flags__ & _HEAP_TYPE and not place.__flags__ & _IMMUTABLE_TYPE else None
