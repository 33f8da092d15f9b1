"""What the traced code holds once it has read something: a value of each kind, and what can be read from it."""

from __future__ import annotations

import collections
import datetime
import types
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import torch
from torch import nn

from .libraries import has_more, is_module_of_library, is_of_library
from .modes import Modes
from .probed import Probed
from .probes import PROBES, code_of, most_items
from .source import HOOKS, Source, is_a, own_attributes, slots_of
from .values import CONTAINERS, MOST_ITEMS, is_key, is_value_of_torch, kind_of, memory_of
from .watch import Watch

# What torch looks at for hooks, and the hooks that it is about.
HOOKS_BY_NAME = {name: name for name in HOOKS} | {
    f"{name}_{manner}": name for name in HOOKS[:2] for manner in ("with_kwargs", "always_called")
}
# Kinds of values that a class may hold beside code.
_DATA = frozenset({"constant", "container", "object", "tensor", "array", "partial"})
_PLAIN = _DATA | {"identity"}
_DESCRIBED = (property, types.GetSetDescriptorType, types.MemberDescriptorType, types.FunctionType)
# What Python itself keeps in classes.
_OF_CLASSES = frozenset({"__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__slots__", "_abc_impl"})
_IMMUTABLE = (tuple, frozenset)
# What finds an attribute's value: of a class that a model's code made it may go by more.
_OF_PYTHON = (property, classmethod, staticmethod)
# Constants that may hold objects.
_HOLDING: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (slice, ("start", "stop", "step")),
    ((datetime.datetime, datetime.time), ("tzinfo",)),
)
# Kinds of values that may have attributes beside what they are for.
_WITH_MORE = frozenset({"partial", "cache", "random", "array", "getter"})


class Reach(Probed):
    """Notes of what is reached; attribute access to it is watched."""

    def __init__(self, twin: nn.Module, live: nn.Module, varying: frozenset[tuple[str, str]], modes: Modes) -> None:
        super().__init__(twin, live, varying, modes)
        self.tensors: dict[int, tuple[torch.Tensor, Source]] = {}
        self.memory: set[int] = set()  # where tensors of the state lie
        self.functions: dict[types.CodeType, list[tuple[Any, Source]]] = {}
        self.having_names: list[Source] = []  # functions
        self.classes: set[type] = set()
        self.kinds: set[type] = set()  # of objects of the call
        self.named: set[str] = set()  # in code that has run
        self.waiting: dict[str, list[tuple[Any, Source]]] = {}  # what classes have under names that no code has named
        self.watch = Watch()

    def reach(self, value: Any, source: Source) -> None:
        """What was read is held by the traced code from now on: what can be read from it is observed."""
        self._ask(value, source)
        kind = kind_of(value)
        if kind in ("constant", "identity"):
            self._reach_fixed(value, source)
            return
        if kind == "module" and id(value) in self.twins:
            self._reach_part(value, source)
            return
        if id(value) in self.parts or source in self.placed:
            return
        self.placed.add(source)
        if is_a(value, _IMMUTABLE):  # of which two that are equal may be one, or not: each is read by itself
            self.known.setdefault(id(value), (value, source))
        else:
            self.objects.append(source)
            if id(value) in self.known:
                return
            self.known[id(value)] = value, source
        handler: Callable[[Any, Source], None] | None = getattr(self, f"_reach_{kind}", None)
        if handler is not None:
            handler(value, source)
        elif kind in PROBES:
            self._reach_probed(value, source, PROBES[kind])
        else:
            self._refuse_reading(value, source)
        if kind in _WITH_MORE and hasattr(value, "__dict__"):
            self._read_all(value, source)

    def reach_named(self, value: Any, source: Source) -> None:
        """As `reach`, of what code finds by a name that is written in it: of a library's Python module the names count that are
        written behind it."""
        if is_a(value, types.ModuleType):
            self._ask(value, source)
            self._watch_module(value, source)
        else:
            self.reach(value, source)

    def _reach_fixed(self, value: Any, source: Source) -> None:
        """What is compared as it is may still be asked for more."""
        if isinstance(value, type):
            self._reach_class(value, source)
        elif isinstance(value, Enum) or has_more(value):
            self._reach_member(value, source)
        elif is_a(value, types.ModuleType):
            self._watch_module(value, source, is_meant=True)
        for kinds, names in _HOLDING:
            if isinstance(value, kinds):
                self._reach_slots(value, source, names)

    def _reach_part(self, value: nn.Module, source: Source) -> None:
        """A module of the unit: that it is this one of them is guarded."""
        stands = self.twins.get(id(value), value)
        self.objects += [source, self._part_source(self.parts[id(stands)][1])]

    def _reach_tensor(self, value: torch.Tensor, source: Source) -> None:
        if isinstance(value, nn.Parameter):
            self.refuse(f"it reads a parameter at {source} rather than as a parameter of its own modules")
        if any(value is buffer for buffer in self.live.buffers()):
            self.refuse(f"it reads a buffer at {source} rather than as a buffer of its own modules")
        if not is_of_library(type(value)) and type(value).__module__.partition(".")[0] != "autotp":
            self.refuse(f"{source} is a tensor of the class {type(value).__qualname__}, which computes in its own way")
        self.tensors[id(value)] = value, source
        self.memory |= {memory_of(value)} - {0}

    def _reach_function(self, value: Any, source: Source) -> None:
        self.functions.setdefault(value.__code__, []).append((value, source))
        self.having_names.append(source)
        is_library = is_module_of_library(value.__globals__)
        if not is_library:
            self.snapshots.take(value, source.__str__)
            self.note(source, "names")
        for name, item in list(own_attributes(value).items()):
            if not is_library or name == "__wrapped__":  # what a library's decorator runs unobserved
                self.reach(item, self.note(source, "attribute", name))

    def _reach_member(self, member: Any, source: Source) -> None:
        """A member of an enumeration, a number or a property of a class of its own may have attributes and methods."""
        if source in self.placed:
            return
        self.placed.add(source)
        self._reach_class(type(member), self.fixed(type(member)))
        self._read_all(member, source)

    def _reach_class(self, kind: type, source: Source) -> None:
        """A class, which anything may be asked of that it or its bases hold, where a model's code made them."""
        if kind in self.classes:
            return
        self.classes.add(kind)
        self.snapshots.take_class(kind, source.__str__)
        for each in kind.__mro__:
            if is_of_library(each):
                continue
            if type(each) is not type:
                self._reach_class(type(each), self.fixed(type(each)))
            self.note(self.fixed(each), "probe", code_of)
            for name, held in list(vars(each).items()):
                self._reach_of_class(name, held, self.fixed(each))

    def _reach_of_class(self, name: str, held: Any, owner: Source) -> None:
        """What a class has under a name: code is looked at once it runs; what may refuse or cost much to watch, once code that
        runs has its name in it."""
        written = self.step(owner, "class", name)
        if isinstance(held, types.FunctionType):  # Python calls some without asking for them
            self.functions.setdefault(held.__code__, []).append((held, written))
        elif isinstance(held, (classmethod, staticmethod)) and isinstance(held.__func__, types.FunctionType):
            inner = self.step(written, "slot", "__func__")
            self.functions.setdefault(held.__func__.__code__, []).append((held.__func__, inner))
        elif isinstance(held, _DESCRIBED) or name in _OF_CLASSES:
            return
        elif name in self.named or kind_of(held) in (() if name.startswith("__") else _PLAIN):
            self.order.setdefault(written)
            self._reach_code(held, written)
        else:
            self.waiting.setdefault(name, []).append((held, written))

    def name(self, names: Iterable[str]) -> None:
        """Code that has names in it begins to run: what classes have under them may be read of the classes themselves."""
        for name in set(names) - self.named:
            self.named.add(name)
            for held, written in self.waiting.pop(name, ()):
                self.order.setdefault(written)
                self._reach_code(held, written)

    def _reach_code(self, written: Any, source: Source) -> None:
        """What a class has under a name: code that will run, or a value."""
        if isinstance(written, _OF_PYTHON) and type(written) not in _OF_PYTHON:
            self._reach_member(written, source)
        if isinstance(written, (classmethod, staticmethod)):
            self.reach(written.__func__, self.step(source, "slot", "__func__"))
        elif isinstance(written, property):
            for name in ("fget", "fset"):
                if getattr(written, name) is not None:
                    self.reach(getattr(written, name), self.step(source, "slot", name))
        elif not isinstance(written, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            self.reach(written, source)

    def _watch_module(self, value: types.ModuleType, source: Source, is_meant: bool = False) -> None:
        """Let all attribute access to a Python module tell. Of those of libraries what code names by itself counts, unless one
        is meant: code has it in its hands, and asks for names that are not written there."""
        if id(value) in self.known or (is_module_of_library(vars(value)) and not is_meant):
            return
        if type(value) is not types.ModuleType:
            self._reach_class(type(value), self.note(source, "type"))
        self.known[id(value)] = value, source
        self.snapshots.take(value, source.__str__)
        self.watch.add_module(value)

    def _reach_module(self, value: nn.Module, source: Source) -> None:
        """A module that is not within the unit: one that holds nothing is an object like any other."""
        if any(True for _ in (*value.parameters(), *value.buffers())):
            self.refuse(f"it uses {source}, a module that is not within it")
        if any(part._backward_hooks or part._backward_pre_hooks for part in value.modules()):
            self.refuse(f"there is a backward hook on {source}")
        self._reach_object(value, source)

    def _reach_container(self, value: Any, source: Source) -> None:
        if len(value) > MOST_ITEMS:
            self.refuse(f"{source} has more than {MOST_ITEMS} items, which are too many to watch")
        is_set = isinstance(value, (set, frozenset))
        if (is_set or isinstance(value, dict)) and not all(map(is_key, value)):
            self.refuse(f"{source} has objects as keys, or is a set of some, and nothing can look these up again")
        self.note(source, "type")
        self.note(source, "content")
        self.snapshots.take(value, source.__str__)
        if isinstance(value, collections.defaultdict):
            self._reach_slots(value, source, ("default_factory",))
        if isinstance(value, collections.deque):
            self.note(source, "probe", most_items)
        items = dict.items(value) if isinstance(value, dict) else () if is_set else enumerate(value)
        for key, item in list(items):
            if id(item) in self.twins:
                self.holders.append((value, item))
            if id(value) in self.held and id(item) in self.own:
                self.reach_own(item, self.note(source, "item", key))
            elif id(item) in self.twins or id(item) in self.parts:
                self._reach_part(item, self.note(source, "item", key))
            else:
                self.reach(item, self.note(source, "item", key))
        if type(value) not in CONTAINERS:
            self._reach_class(type(value), self.step(source, "type"))
            self.watch.add_class(type(value))

    def _reach_object(self, value: Any, source: Source) -> None:
        self.note(source, "type")
        self.snapshots.take(value, source.__str__)
        self._reach_class(type(value), self.step(source, "type"))
        if isinstance(value, BaseException):
            self._reach_slots(value, source, ("args", "__cause__", "__context__"))
        is_read = is_value_of_torch(type(value)) or isinstance(value, types.SimpleNamespace)  # by C, too
        if is_read or not self.watch.add_class(type(value)):
            self._read_all(value, source)

    def _read_all(self, value: Any, source: Source) -> None:
        """Note every attribute of an object, as nothing tells which of them is read."""
        self.snapshots.take(value, source.__str__)
        self.note(source, "names")
        for name in slots_of(type(value)):
            slot = self.note(source, "slot", name)
            self.reach(slot.get(self.live), slot)
        for name, item in list(own_attributes(value).items()):
            if is_a(value, nn.Module) and name in HOOKS_BY_NAME:
                self._note_hooks(source, HOOKS_BY_NAME[name])
            else:
                self.reach(item, self.note(source, "attribute", name))

    def _note_hooks(self, source: Source, name: str) -> None:
        hooks = self.note(source, "hooks", name)
        found = hooks.get(self.live)
        if found and name.startswith("_backward"):
            self.refuse(f"there is a backward hook on {source}")
        self._reach_container(found, hooks)
