"""Names that are read off Python modules and classes which code names itself: those that it has as globals, and imports."""

from __future__ import annotations

import contextvars
import importlib.util
import sys
import types
from collections.abc import Set
from typing import Any

from torch import nn

from .actions import SUBCLASSES, Action
from .answers import PLAIN, attribute
from .attributes import Attributes
from .libraries import is_of_library
from .modes import Modes
from .probes import can_be_found, has_plain_subclasses, subclasses
from .snapshot import untraced
from .source import MISSING, Source, static_attribute
from .values import is_of_torch


class Names(Attributes):
    """Notes of what is read off them."""

    def __init__(self, twin: nn.Module, live: nn.Module, varying: frozenset[tuple[str, str]], modes: Modes) -> None:
        super().__init__(twin, live, varying, modes)
        self.named_in: set[types.CodeType] = set()  # code of torch's functions

    def refuse_named(self, value: Any) -> None:
        """Of a module of the unit that code names: there a trace cannot put the twin's."""
        if id(value) in self.twins:
            self.refuse_part(value)

    def read_subclasses(self, frame: types.FrameType, action: Action) -> None:
        """A class, which a variable holds, is asked for the classes that are made of it."""
        operand, kind = action.operands[0], None
        if operand.startswith(("LOAD_FAST", "LOAD_DEREF")):
            kind = frame.f_locals.get(action.name)
        elif operand in ("LOAD_GLOBAL", "LOAD_NAME"):  # of what is read off something else, the name says nothing
            kind = frame.f_globals.get(action.name)
        if not (isinstance(kind, type) and has_plain_subclasses(kind)):
            self.refuse(f"it asks for {SUBCLASSES} of something, and nothing tells what that gives", moving=True)
            return
        self.note(self.fixed(kind), "probe", subclasses)
        for each in subclasses(kind):
            self.reach(each, self.fixed(each))

    def import_module(self, frame: types.FrameType, action: Action) -> None:
        """An instruction imports a Python module: itself, or names of it, which may be modules as well."""
        name = action.name
        if name.startswith("."):
            name = importlib.util.resolve_name(name, str(frame.f_globals.get("__package__")))
        if not self._load(name):
            return
        base = name.partition(".")[0] if action.whole else name
        module, source = sys.modules.get(base), self.note(self.fixed(sys.modules), "item", base)
        self.reach_named(module, source)
        if not action.whole and hasattr(module, "__path__"):
            for each in {chain[0] for chain in action.chains if chain and not hasattr(module, chain[0])}:
                self._load(f"{name}.{each}")
        self.read_chains(module, source, action)

    def import_named(self, frame: types.FrameType) -> None:
        """A function imports a Python module: which names are read of it, nothing but the module can tell."""
        name, package = frame.f_locals["name"], frame.f_locals["package"]
        name = importlib.util.resolve_name(name, package) if package and name.startswith(".") else name
        if self._load(name):
            module = sys.modules[name]
            self.reach(module, self.note(self.fixed(sys.modules), "item", name))

    def _load(self, name: str) -> bool:
        """Import a Python module as if nothing traced it, since it is there for longer; returns if it is there."""
        try:
            with untraced():
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = str(error.name)
            if name != missing and not name.startswith(missing + "."):
                self.refuse(f"it imports {name}, which fails for want of {missing}")
            self.note(self.fixed(sys.modules), "item", missing)
            self.note(self.fixed(sys), "probe", can_be_found(missing))
            return False
        except Exception as error:
            self.refuse(f"it imports {name}, which fails with {type(error).__name__}")
            return False
        return True

    def note_named(self, function: types.FunctionType) -> None:
        """What a Python function of torch's, and those of the same Python module that it calls, find by their names there: nobody
        follows what torch's functions do, and somebody may put another function in the place of one."""
        namespace, waiting = function.__globals__, [function.__code__]
        while waiting:
            code = waiting.pop()
            if code in self.named_in:
                continue
            self.named_in.add(code)
            for name in code.co_names:
                held = namespace.get(name)
                if callable(held) or isinstance(held, types.ModuleType):
                    source = self.note(self.fixed(namespace), "global", name)
                    self._note_named_in(held, source, set(code.co_names))
                if isinstance(held, types.FunctionType) and held.__globals__ is namespace:
                    waiting.append(held.__code__)

    def _note_named_in(self, module: Any, source: Source, names: set[str]) -> None:
        """What of these names may be read off a Python module, and off those in it."""
        for name in names.intersection(vars(module)) if isinstance(module, types.ModuleType) else ():
            held = vars(module)[name]
            if callable(held) or (isinstance(held, types.ModuleType) and held is not module):
                self._note_named_in(held, self.note(source, "attribute", name), names - {name})

    def read_chains(self, value: Any, source: Source, action: Action) -> None:
        for chain in action.chains:
            self._read_names(value, source, chain, action.stored)

    def _read_names(self, value: Any, source: Source, names: tuple[str, ...], stored: Set[str]) -> None:
        """Names read one after the other, as long as they are those of Python modules and classes."""
        for name in names:
            self._take_stored(value, source, stored)
            held_by = source
            if isinstance(value, types.ModuleType):
                source, found = self.note(source, "attribute", name), vars(value).get(name, MISSING)
            elif isinstance(value, type):
                if name == SUBCLASSES:
                    return  # noted as they are asked for
                held, (found, _) = source, static_attribute(value, name)
                if isinstance(found, types.MemberDescriptorType) and not is_of_library(value):
                    self.refuse(f"it takes {name} of {source} itself, and nothing tells of which object it reads that")
                source = self.note(held, "class", name)
                if found is MISSING:  # a class is an object of its own class
                    source = self.note(self.note(held, "type"), "class", name)
                    found = static_attribute(type(value), name)[0]
            elif isinstance(value, types.FunctionType):
                source, found = self.note(source, "attribute", name), vars(value).get(name, MISSING)
            else:
                if isinstance(value, contextvars.ContextVar) and name in ("set", "reset"):
                    self.refuse(f"it sets {source}, which outlives the call")
                self._ask_torch(value, name, source)
                return
            if found is MISSING:
                self._ask_torch(value, name, held_by)
                return
            self.refuse_named(found)
            (self._reach_code if isinstance(value, type) else self.reach_named)(found, source)
            value = found
        self._take_stored(value, source, stored)
        if isinstance(value, types.ModuleType):
            self._watch_module(value, source, is_meant=True)

    def _take_stored(self, value: Any, source: Source, stored: Set[str]) -> None:
        """Of a library's Python module, which nothing watches: what the code that names it may set."""
        if stored and isinstance(value, types.ModuleType) and id(value) not in self.known:
            self.snapshots.take_names(vars(value), stored, source.__str__)

    def _ask_torch(self, value: Any, name: str, source: Source) -> None:
        """A setting of torch that is an attribute of an object of its own, or of a Python module that computes it."""
        if is_of_torch(type(value)) and isinstance(getattr(value, name, MISSING), PLAIN):
            self.note(source, "probe", attribute(name))
