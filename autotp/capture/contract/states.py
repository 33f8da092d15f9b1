"""What an object has in it, one level deep: how it is remembered, what was written to it since, and how it is put back."""

from __future__ import annotations

import array
import collections
import sys
import types
from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any

import numpy
from torch import nn

from .probes import array_state
from .source import MISSING, own_attributes, slots_of
from .values import ARRAYS, BUFFERS, NAMES, are_same_keys


def state_of(value: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if isinstance(value, ARRAYS):
        state["array"] = memoryview(value).tobytes() if isinstance(value, BUFFERS) else value.copy()
    elif isinstance(value, dict):
        state["items"] = dict(_entries(value))
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
            state[held] = dict(_entries(attributes[held]))
    return state


def _entries(value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """The entries of a dict, of which a class of its own may make some where they are asked for."""
    return (collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict).items(value)


def _slots(value: Any) -> dict[str, Any]:
    names = slots_of(type(value))
    if isinstance(value, types.FunctionType):
        names = ["__defaults__", "__kwdefaults__", "__code__", *NAMES]
    if isinstance(value, BaseException):
        names.append("args")
    found = {}
    for name in names:
        try:
            found[name] = object.__getattribute__(value, name)
        except AttributeError:
            found[name] = MISSING
    return found


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """What was written, behind the name of what it was written to."""
    if "array" in before:
        old, new = before["array"], now["array"]
        if not (old == new if isinstance(old, bytes) else array_state(old) == array_state(new)):
            return ""
    for part in (before.keys() | now.keys()) - {"array"}:
        old, new = before.get(part, {}), now.get(part, {})
        if isinstance(old, dict) and isinstance(new, dict):
            changed = written(old, new)
            if changed:
                return f"[{changed[0]!r}]" if part == "items" else f".{changed[0]}"
            if part == "items" and not are_same_keys(tuple(old), tuple(new)):
                return ""
        elif list(map(id, old)) != list(map(id, new)):
            return ""
    return None


def written(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> list[Any]:
    """Keys under which something else lies. Modules come into their packages where these are imported, and stay there."""
    if len(old) == len(new) and all(map(is_, old, new)) and all(map(is_, old.values(), new.values())):
        return []  # as nearly always
    changed = [k for k in {**old, **new} if old.get(k, MISSING) is not new.get(k, MISSING)]
    return [k for k in changed if k != _WARNED and not _is_imported(old.get(k, MISSING), new.get(k, MISSING))]


_WARNED = "__warningregistry__"


def _is_imported(old: Any, new: Any) -> bool:
    return old is MISSING and isinstance(new, types.ModuleType) and sys.modules.get(new.__name__) is new


def put(entries: dict[Any, Any], key: Any, old: Any) -> None:
    if old is MISSING:
        entries.pop(key, None)
    else:
        entries[key] = old


def _fill(value: Any, numbers: Any) -> None:
    if isinstance(value, numpy.void):
        for name in value.dtype.names or ():
            value[name] = numbers[name]
    elif isinstance(value, numpy.ndarray):
        if value.shape != numbers.shape:
            value.shape = numbers.shape
        value[...] = numbers
    elif isinstance(value, (bytearray, array.array)) and memoryview(value).nbytes != len(numbers):
        del value[:]  # which nobody can do while a view of it is there: then it has not grown
        (value.extend if isinstance(value, bytearray) else value.frombytes)(numbers)
    elif numbers:
        memoryview(value).cast("B")[:] = numbers


def give(value: Any, before: dict[str, Any]) -> None:
    if "array" in before:
        _fill(value, before["array"])
    items = before.get("items")
    if isinstance(value, types.ModuleType):  # others may be running in it
        for key in written(before["attributes"], vars(value)):
            put(vars(value), key, before["attributes"].get(key, MISSING))
        return
    if isinstance(value, dict):
        plain = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        plain.clear(value)
        for key, item in (items or {}).items():
            plain.__setitem__(value, key, item)
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
