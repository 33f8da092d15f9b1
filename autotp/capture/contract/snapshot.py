"""Snapshots: state as it was when the traced code reached it, to find what was written and to put it back."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy
from torch import nn

from .source import MISSING, own_attributes


class Snapshots:
    """Copies, one level deep, of what was reached. Each has a function that says in words what it is."""

    def __init__(self) -> None:
        self.taken: dict[int, tuple[Any, Any, Callable[[], str]]] = {}
        self.entries: list[tuple[dict[str, Any], str, Any]] = []
        self.caches: list[tuple[Any, int]] = []

    def take(self, value: Any, name: Callable[[], str]) -> None:
        """Remember the present state of a container, an object, an array, or a module with its parameters and buffers."""
        if id(value) not in self.taken and not isinstance(value, (tuple, frozenset)):
            self.taken[id(value)] = value, _state(value), name

    def take_entry(self, namespace: dict[str, Any], name: str) -> None:
        """Remember one global."""
        self.entries.append((namespace, name, namespace.get(name, MISSING)))

    def take_cache(self, function: Any) -> None:
        """Remember how many results a memoising function keeps."""
        self.caches.append((function, function.cache_info().currsize))

    def restore(self) -> str | None:
        """Put back what was written; returns what it was, None if nothing was."""
        written = None
        for value, before, name in self.taken.values():
            difference = _difference(before, _state(value))
            if difference is not None:
                written = written or name() + difference
                _give(value, before)
        for namespace, key, old in reversed(self.entries):
            if old is MISSING:
                namespace.pop(key, None)
            else:
                namespace[key] = old
        for function, size in self.caches:
            if function.cache_info().currsize != size:
                function.cache_clear()  # what it has kept is the trace's; it computes the rest again
        return written


def _state(value: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if isinstance(value, numpy.ndarray):
        state["array"] = value.copy()
        return state
    if isinstance(value, dict):
        state["items"] = dict(value)
    elif isinstance(value, (list, collections.deque)):
        state["items"] = list(value)
    elif isinstance(value, set):
        state["items"] = set(value)
    attributes = own_attributes(value)
    if attributes:
        state["attributes"] = dict(attributes)
    slots = _slots(value)
    if slots:
        state["slots"] = slots
    if isinstance(value, nn.Module):
        for held in ("_parameters", "_buffers", "_modules"):
            state[held] = dict(attributes[held])
    return state


def _slots(value: Any) -> dict[str, Any]:
    names = [name for kind in type(value).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    found = {}
    for name in names:
        try:
            found[name] = object.__getattribute__(value, name)
        except AttributeError:
            found[name] = MISSING
    return found


def _names(slots: Any) -> list[str]:
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__") and not name.startswith("__")]


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """What was written, behind the name of what it was written to."""
    if "array" in before:
        return None if numpy.array_equal(before["array"], now["array"], equal_nan=True) else ""
    for part in before.keys() | now.keys():
        old, new = before.get(part, {}), now.get(part, {})
        if isinstance(old, dict) and isinstance(new, dict):
            changed = [k for k in {**old, **new} if old.get(k, MISSING) is not new.get(k, MISSING)]
            if changed:
                return f"[{changed[0]!r}]" if part == "items" else f".{changed[0]}"
            if part == "items" and list(old) != list(new):
                return ""
        elif list(map(id, old)) != list(map(id, new)):
            return ""
    return None


def _give(value: Any, before: dict[str, Any]) -> None:
    if "array" in before:
        value[...] = before["array"]
        return
    items = before.get("items")
    if isinstance(value, dict):
        dict.clear(value)
        dict.update(value, items or {})
    elif isinstance(value, list):
        value[:] = items or []
    elif isinstance(value, (set, collections.deque)):
        value.clear()
        (value.update if isinstance(value, set) else value.extend)(items or ())
    attributes = own_attributes(value)
    if attributes or "attributes" in before:
        attributes.clear()
        attributes.update(before.get("attributes", {}))
    for name, old in before.get("slots", {}).items():
        if old is MISSING:
            if hasattr(value, name):
                object.__delattr__(value, name)
        else:
            object.__setattr__(value, name, old)
