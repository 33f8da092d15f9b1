"""Observing: while a unit's Python runs for a trace, every read of state is noted with the source it was found at.

The classes of the objects that are reached get an attribute access that tells (and is taken back afterwards), containers are
noted with all that is in them, and the instructions that run say which globals are read. What cannot be observed is an error.
"""

from __future__ import annotations

import builtins
import gc
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import numpy
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ...errors import TraceError
from .frames import Action, Tracing, is_observed
from .guards import Contract, Guard, grouped
from .modes import Modes
from .snapshot import Snapshots, is_module_of_library, is_of_library
from .source import HOOKS, MISSING, Source, dense_class, own_attributes, static_attribute
from .tensors import telling
from .values import (
    CONTAINERS,
    MOST_ITEMS,
    PROBES,
    as_expected,
    environment_state,
    is_outside,
    is_value_of_torch,
    kind_of,
    may_write,
    memory_of,
    names_in,
    wanted_gradients,
)

_active: dict[int, Observer] = {}
_PARTS = frozenset({"_modules", "_parameters", "_buffers"})
_LEAVES = {
    torch.Tensor.register_hook: "register_hook",
    torch.Tensor.register_post_accumulate_grad_hook: "register_post_accumulate_grad_hook",
    torch.Tensor.retain_grad: "retain_grad",
    torch.Tensor.data.__set__: "the data",  # type: ignore[attr-defined]
    torch.Tensor.backward: "backward",
    torch.Tensor.set_: "set_",
}
_NUMBERS = frozenset(
    {
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.__bool__,
        torch.Tensor.__int__,
        torch.Tensor.__float__,
        torch.Tensor.__index__,
        torch.equal,
        torch.allclose,
    }
)
_GRADIENT = torch.Tensor.grad.__get__  # type: ignore[union-attr]
_GRADIENTS = frozenset(getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "is_leaf", "grad_fn"))
# What torch looks at for hooks, and the hooks that it is about.
_HOOKS = {name: name for name in HOOKS} | {
    f"{name}_{manner}": name for name in HOOKS[:2] for manner in ("with_kwargs", "always_called")
}
# Kinds of values that a class may hold beside code.
_DATA = frozenset({"constant", "container", "object", "tensor", "array", "partial"})
# Kinds of values of which `is` says something.
_TOLD_APART = frozenset({"tensor", "object", "container"})
_IMMUTABLE = (tuple, frozenset)
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # flags of classes, Include/object.h of CPython


class Observer:
    """What the Python of one trace reads and writes.

    `twin` is what is traced, `live` the unit's module, which it stands for: sources are about the latter. Attributes
    (module path, name) in `varying` are inputs of the trace, and not guarded; `modes` are those of the call.
    """

    def __init__(self, twin: nn.Module, live: nn.Module, varying: frozenset[tuple[str, str]], modes: Modes) -> None:
        self.live, self.varying, self.modes = live, varying, modes
        self.sources: dict[tuple[Any, ...], Source] = {}
        self.order: dict[Source, None] = {}  # as they were read
        self.known: dict[int, tuple[Any, Source]] = {}  # objects by identity, kept alive
        self.objects: list[Source] = []
        self.aliases: list[tuple[Source, Source]] = []
        self.tensors: dict[int, tuple[torch.Tensor, Source]] = {}
        self.state: dict[int, tuple[Any, Source]] = {}  # what stands for parameters and buffers
        self.hidden: dict[int, torch.Tensor] = {}
        self.memory: set[int] = set()  # where tensors of the state lie
        self.functions: dict[types.CodeType, list[tuple[Any, Source]]] = {}
        self.classes: set[type] = set()
        self.modules: list[types.ModuleType] = []
        self.entered: set[tuple[int, Source]] = set()
        self.own_code: set[types.CodeType] = set()  # of functions that the trace itself makes
        self.patched: dict[type, Any] = {}
        self.told: dict[type, bool] = {}
        self.problem: str | None = None
        self.lenient = self.gradients_asked = False
        self.snapshots = Snapshots()
        self.root = Source(None, "unit")
        self.twins: dict[int, nn.Module] = {}
        self.parts: dict[int, tuple[nn.Module, str]] = {}
        for path, part in twin.named_modules():
            own = live.get_submodule(path)
            source = self._part_source(path)
            self.known[id(part)] = part, source
            self.parts[id(part)] = own, path
            self.twins[id(own)] = part
            self.snapshots.take(part, source.__str__)
            self.snapshots.take_class(type(part), source.__str__)
        self._note_aliases()

    def _part_source(self, path: str) -> Source:
        source = self.root
        for name in path.split(".") if path else ():
            source = self._step(source, "part", name)
        return source

    def _note_aliases(self) -> None:
        """Which of the unit's parameters and buffers are one: equal ones are one in the trace, too."""
        first: dict[int, Source] = {}
        for path, part in self.live.named_modules():
            for kind, held in (("parameter", part._parameters), ("buffer", part._buffers)):
                for name, tensor in held.items():
                    if tensor is not None:
                        source = self._step(self._part_source(path), kind, name)
                        known = first.setdefault(id(tensor), source)
                        if known is not source:
                            self.aliases.append((known, source))

    # What is noted.

    def _step(self, parent: Source | None, kind: str, key: Any = None) -> Source:
        name = (parent, kind, key if kind != "fixed" else id(key))
        if name not in self.sources:
            self.sources[name] = Source(parent, kind, key)
        return self.sources[name]

    def note(self, parent: Source | None, kind: str, key: Any = None) -> Source:
        """A read of a step from a source."""
        source = self._step(parent, kind, key)
        self.order.setdefault(source)
        return source

    def refuse(self, reason: str, moving: bool = False) -> None:
        """Say why there can be no program. The code that is traced may catch the error, so it is kept. What is `moving`
        cannot be put back, so the code does not go on in any case."""
        self.problem = self.problem or reason
        if moving or not self.lenient:
            raise TraceError(self.problem)

    def _refuse_outside(self, function: Any) -> None:
        """Of a function that asks the system; a file that is opened may be written, which nothing puts back."""
        moving = function is open
        self.refuse(f"it calls {function.__name__}, and what that says is not the model's state", moving)

    def fixed(self, value: Any) -> Source:
        """The source of an object that is the same for all units."""
        return self._step(None, "fixed", value)

    def reach(self, value: Any, source: Source) -> None:
        """What was read is held by the traced code from now on: what can be read from it is observed."""
        kind = kind_of(value)
        if kind in ("constant", "identity"):
            if isinstance(value, type):
                self._reach_class(value, source)
            if isinstance(value, Enum):
                self._reach_member(value, source)
            if is_outside(value):
                self._refuse_outside(value)
            if isinstance(value, types.ModuleType):
                self._watch_module(value, source)
            return
        if id(value) in self.known:
            first = self.known[id(value)][1]
            if first is not source and kind in _TOLD_APART and not isinstance(value, _IMMUTABLE):
                self.objects.append(source)
            return
        if kind == "module" and id(value) in self.twins:
            return
        self.known[id(value)] = value, source
        if kind in _TOLD_APART and not isinstance(value, _IMMUTABLE):
            self.objects.append(source)
        handler: Callable[[Any, Source], None] | None = getattr(self, f"_reach_{kind}", None)
        if handler is not None:
            handler(value, source)
        elif kind in PROBES:
            self._reach_probed(value, source, PROBES[kind])
        else:
            self.refuse(
                f"it reads {source}, and nothing can tell what a {type(value).__qualname__} gives", kind == "moving"
            )

    def _reach_tensor(self, value: torch.Tensor, source: Source) -> None:
        if isinstance(value, nn.Parameter):
            self.refuse(f"it reads a parameter at {source} rather than as a parameter of its own modules")
        self.tensors[id(value)] = value, source
        self.memory |= {memory_of(value)} - {0}

    def _check_wants_no_gradient(self, state: torch.Tensor | None, source: Source) -> None:
        if state is not None and state.requires_grad:
            self.refuse(f"{source} wants a gradient and is no parameter, and a program sums those of parameters")

    def _reach_function(self, value: Any, source: Source) -> None:
        self.functions.setdefault(value.__code__, []).append((value, source))
        is_library = is_module_of_library(value.__globals__)
        if not is_library:
            self.snapshots.take(value, source.__str__)
        for name, item in list(own_attributes(value).items()):
            if not is_library or name == "__wrapped__":  # what a library's decorator runs unobserved
                self.reach(item, self.note(source, "attribute", name))

    def _reach_method(self, value: Any, source: Source) -> None:
        self._reach_slots(value, source, ("__func__", "__self__"))

    def _reach_member(self, member: Enum, source: Source) -> None:
        """A member of an enumeration is a constant, but may have been given attributes."""
        self.snapshots.take(member, source.__str__)
        for name, item in list(own_attributes(member).items()):
            if not name.startswith("_"):
                self.reach(item, self.note(source, "attribute", name))

    def _reach_class(self, kind: type, source: Source) -> None:
        """A class, which anything may be asked of that it or its bases hold, where a model's code made them."""
        if kind in self.classes:
            return
        self.classes.add(kind)
        self.snapshots.take_class(kind, source.__str__)
        for each in kind.__mro__:
            if not is_of_library(each):
                self.note(self.fixed(each), "probe", names_in)
            for name, held in [] if is_of_library(each) else list(vars(each).items()):
                if kind_of(held) in _DATA and not (name.startswith("__") and name.endswith("__")):
                    self._reach_code(held, self.note(source, "class", name))

    def _watch_module(self, value: types.ModuleType, source: Source) -> None:
        """Let all attribute access to a Python module tell; of those of libraries what code names by itself counts."""
        if id(value) in self.known or type(value) is not types.ModuleType or is_module_of_library(vars(value)):
            return
        self.known[id(value)] = value, source
        value.__class__ = _Telling
        self.modules.append(value)

    def _reach_module(self, value: nn.Module, source: Source) -> None:
        """A module that is not within the unit: one that holds nothing is an object like any other."""
        if any(True for _ in (*value.parameters(), *value.buffers())):
            self.refuse(f"it uses {source}, a module that is not within it")
        if any(part._backward_hooks or part._backward_pre_hooks for part in value.modules()):
            self.refuse(f"there is a backward hook on {source}")
        self._reach_object(value, source)

    def _reach_random(self, value: Any, source: Source) -> None:
        self.snapshots.take_random(value, source.__str__)

    def _reach_partial(self, value: Any, source: Source) -> None:
        self._reach_slots(value, source, ("func", "args", "keywords"))

    def _reach_slots(self, value: Any, source: Source, names: tuple[str, ...]) -> None:
        for name in names:
            self.reach(getattr(value, name), self.note(source, "slot", name))

    def _reach_cache(self, value: Any, source: Source) -> None:
        self.note(source, "probe", PROBES["cache"])
        self.snapshots.take_cache(value)
        self.reach(value.__wrapped__, self._step(source, "slot", "__wrapped__"))

    def _reach_probed(self, value: Any, source: Source, probe: Callable[[Any], Any]) -> None:
        inside = self.note(source, "probe", probe)
        if isinstance(value, numpy.ndarray):
            self.snapshots.take(value, source.__str__)
        else:
            self.reach(probe(value), inside)

    def _reach_container(self, value: Any, source: Source) -> None:
        if len(value) > MOST_ITEMS:
            self.refuse(f"{source} has more than {MOST_ITEMS} items, which are too many to watch")
        self.note(source, "type")
        self.note(source, "content")
        self.snapshots.take(value, source.__str__)
        items = (
            dict.items(value)
            if isinstance(value, dict)
            else ()
            if isinstance(value, (set, frozenset))
            else enumerate(value)
        )
        for key, item in list(items):
            if id(item) in self.twins or id(item) in self.parts:
                self.note(source, "item", key)
            else:
                self.reach(item, self.note(source, "item", key))
        if type(value) not in CONTAINERS:
            self._watch(type(value))

    def _reach_object(self, value: Any, source: Source) -> None:
        self.note(source, "type")
        self.snapshots.take(value, source.__str__)
        self._reach_class(type(value), self._step(source, "type"))
        if is_value_of_torch(type(value)) or not self._watch(type(value)):
            self._read_all(value, source)

    def _read_all(self, value: Any, source: Source) -> None:
        """Note every attribute of an object, as nothing tells which of them is read."""
        for name, item in list(own_attributes(value).items()):
            if isinstance(value, nn.Module) and name in _HOOKS:
                self._note_hooks(source, _HOOKS[name])
            else:
                self.reach(item, self.note(source, "attribute", name))

    def begin(self, leaves: Sequence[Any]) -> None:
        """The unit's forward is about to run, with these arguments: functions among them may run in it, and a call's key
        says which ones they are."""
        if (stranger := self.modes.stranger()) is not None:
            self.refuse(f"{stranger} watches the functions of torch, and a program calls others")
        for part, path in list(self.parts.values()):
            self._reach_class(dense_class(part), self._step(self._part_source(path), "type"))
        own = own_attributes(self.twins[id(self.live)]).get("forward")
        if own is not None:
            self.reach(own, self.fixed(own))
        else:
            self._reach_code(*self._class_attribute(self.live, "forward", self.root))
        for leaf in leaves:
            if callable(leaf) and not isinstance(leaf, nn.Module):
                self.reach(leaf, self.fixed(leaf))

    # Attribute access.

    def _watch(self, kind: type) -> bool:
        """Let all attribute access to objects of a class tell; returns if it does."""
        if kind in self.told:
            return self.told[kind]
        place = _place_to_tell(kind, self.patched)
        self.told[kind] = place is not None
        if place is not None and place not in self.patched:
            original: Any = place.__getattribute__
            own = vars(place).get("__getattribute__", MISSING)

            def tell(value: Any, name: str) -> Any:
                observer = _active.get(threading.get_ident())
                if observer is None or id(value) not in observer.known:
                    return original(value, name)
                return observer.attribute(value, name, original)

            place.__getattribute__ = tell  # type: ignore[method-assign, assignment]
            self.patched[place] = own
        return self.told[kind]

    def _unwatch(self) -> None:
        """Let go of the classes and Python modules that were made to tell."""
        for module in self.modules:
            module.__class__ = types.ModuleType
        for kind, own in reversed(self.patched.items()):
            if own is MISSING:
                del kind.__getattribute__
            else:
                kind.__getattribute__ = own  # type: ignore[method-assign]
        self.modules.clear()
        self.patched.clear()

    def attribute(self, value: Any, name: str, original: Callable[[Any, str], Any]) -> Any:
        """An attribute of an object that the traced code asks for."""
        reader = sys._getframe(2)
        if not is_observed(reader) or self.known[id(value)][0] is not value:
            return original(value, name)
        source = self.known[id(value)][1]
        if id(value) in self.parts:
            return self._of_module(value, name, source, original, reader)
        if isinstance(value, types.ModuleType):
            found = original(value, name)
            if name != "__dict__" and name in vars(value):
                self.reach(found, self.note(source, "attribute", name))
            return found
        self._note_attribute(value, name, source)
        found = original(value, name)
        return self.twins.get(id(found), found)

    def _of_module(
        self, twin: nn.Module, name: str, source: Source, original: Callable[[Any, str], Any], reader: types.FrameType
    ) -> Any:
        live, path = self.parts[id(twin)]
        if name in _PARTS or (path, name) in self.varying or (not path and name == "forward"):
            return original(twin, name)
        if name in _HOOKS:
            self._note_hooks(source, _HOOKS[name])
            self.snapshots.take(own_attributes(live)[name], lambda: f"{source}.{name}")
            return original(twin, name)
        if name == "__dict__":
            if reader.f_code.co_filename != torch.nn.modules.module.__file__:  # which looks for one name in it
                self._read_all(live, source)
            return original(twin, name)
        for kind, held in (("parameter", twin._parameters), ("buffer", twin._buffers)):
            if name in held and name not in own_attributes(twin):
                self.state[id(held[name])] = held[name], self.note(source, kind, name)
                if kind == "buffer":
                    self._check_wants_no_gradient(live._buffers.get(name), source)
                return original(twin, name)
        if name in twin._modules and name not in own_attributes(twin):
            return original(twin, name)
        self._note_attribute(live, name, source)
        found = original(twin, name)
        if isinstance(found, CONTAINERS):
            self.snapshots.take(found, lambda: f"{source}.{name}")
        return found

    def _note_hooks(self, source: Source, name: str) -> None:
        hooks = self.note(source, "hooks", name)
        found = hooks.get(self.live)
        if found and name.startswith("_backward"):
            self.refuse(f"there is a backward hook on {source}")
        self._reach_container(found, hooks)

    def _note_attribute(self, value: Any, name: str, source: Source) -> None:
        """Where Python looks for an attribute: at what the class says, and in the object itself."""
        if name == "__class__":
            self.note(source, "type")
            return
        if name == "__dict__":
            self._read_all(value, source)
            return
        written, from_class = self._class_attribute(value, name, source)
        if isinstance(written, types.MemberDescriptorType):
            slot = self.note(source, "slot", name)
            self.reach(slot.get(self.live), slot)
            return
        if hasattr(type(written), "__set__") and written is not MISSING:
            self._reach_code(written, from_class)
            return
        own = own_attributes(value)
        entry = self.note(source, "attribute", name)
        if name in own:
            self.reach(own[name], entry)
        elif written is not MISSING:
            self._reach_code(written, from_class)
        else:
            self.note(self.note(source, "type"), "absent", name)

    def _class_attribute(self, value: Any, name: str, source: Source) -> tuple[Any, Source]:
        """What the class of an object has under a name, and the source of that."""
        written, _ = static_attribute(dense_class(value), name)
        return written, self.note(self.note(source, "type"), "class", name)

    def _reach_code(self, written: Any, source: Source) -> None:
        """What a class has under a name: code that will run, or a value."""
        if isinstance(written, (classmethod, staticmethod)):
            self.reach(written.__func__, self._step(source, "slot", "__func__"))
        elif isinstance(written, property):
            for name in ("fget", "fset"):
                if getattr(written, name) is not None:
                    self.reach(getattr(written, name), self._step(source, "slot", name))
        elif not isinstance(written, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            self.reach(written, source)

    def asked(self, tensor: torch.Tensor, name: str) -> Any:
        """An attribute that a tensor of the trace does not have: of a parameter or buffer its own is meant."""
        stands, source = self.state.get(id(tensor), (None, self.root))
        if stands is not tensor:
            self.refuse(f"it asks a tensor for {name}, which no tensor has by itself")
            return MISSING
        entry = self.note(source, "attribute", name)
        found = entry.get(self.live)
        if found is not MISSING:
            self.reach(found, entry)
        return found

    def set(self, name: str) -> None:
        """An attribute of a tensor is set."""
        self.refuse(f"it sets {name} of a tensor, which outlives the call")

    # Instructions.

    def enter(self, frame: types.FrameType) -> None:
        """A function begins: what its closure and its defaults hold is state, unless the trace has made it."""
        code = frame.f_code
        self.own_code.update(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        functions = self.functions.get(code, ())
        captured = [name for name in code.co_freevars if name != "__class__"]
        if captured and not functions and code not in self.own_code:
            self.refuse(f"it calls {code.co_qualname}, whose variable {captured[0]} nothing can look up again")
        for function, source in list(functions):
            if (id(function), source) in self.entered:
                continue
            self.entered.add((id(function), source))
            self.note(source, "slot", "__code__")
            for name in captured:
                cell = self.note(source, "cell", name)
                self._reach_held(cell.get(self.live), cell)
            for name in ("__defaults__", "__kwdefaults__"):
                if getattr(function, name):
                    slot = self.note(source, "slot", name)
                    self.reach(getattr(function, name), slot)

    def ask(self, frame: types.FrameType) -> None:
        """The environment is asked for a variable, or for all, or one is set."""
        environment, method = frame.f_locals["self"], frame.f_code.co_name
        source = self.fixed(environment)
        if method == "__getitem__":
            self.note(source, "item", frame.f_locals["key"])
        elif method in ("__iter__", "__len__", "__repr__", "copy", "__or__", "__ror__"):
            self.note(source, "probe", environment_state)
        elif method != "__init__":
            self.snapshots.take(environment._data, lambda: "the environment")
            self.refuse("it changes the environment, which outlives the call")

    def _reach_environment(self, value: Any, source: Source) -> None:
        """Its variables are observed as they are asked for."""

    def _reach_held(self, value: Any, source: Source) -> None:
        """As `reach`; a module of the unit may stand in a closure, which the twin's has its twin in."""
        if id(value) not in self.twins:
            self.reach(value, source)

    def act(self, frame: types.FrameType, action: Action) -> None:
        """An instruction reads a global, or writes what outlives the call."""
        if action.operation == "IMPORT_NAME":
            module = sys.modules.get(action.name)
            if module is not None:
                self._read_names(module, self.fixed(module), action.names)
            return
        if action.operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            self._read_global(frame, action)
            return
        if action.operation.endswith("DEREF") and frame.f_code in self.own_code:
            return  # a variable of a call that is traced
        if action.operation.endswith("GLOBAL"):
            self.snapshots.take_entry(frame.f_globals, action.name)
        for function, _ in self.functions.get(frame.f_code, ()):
            if action.name in function.__code__.co_freevars:
                self.snapshots.take_cell(function.__closure__[function.__code__.co_freevars.index(action.name)])
        self.refuse(f"it sets {action.name}, which outlives the call")

    def call(self, function: Any, args: Any, kwargs: Any) -> None:
        """A function of torch runs; some leave in a tensor what a graph does not have, some read what is in one."""
        if may_write(function, kwargs):
            for tensor in (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)):
                if memory_of(tensor) in self.memory:
                    self.snapshots.take_numbers(tensor)
                if id(tensor) in self.hidden or id(tensor._base) in self.hidden:
                    self.refuse("it writes into the data of a tensor behind autograd's back")
        if function in _LEAVES:
            self.refuse(f"it calls {_LEAVES[function]} of a tensor, of which a program knows nothing")
        if function in _NUMBERS and not isinstance(args[0], FakeTensor):
            self.refuse("it reads the numbers of a tensor that it keeps")
        if function == _GRADIENT:
            self.refuse("it reads the gradient of a tensor")
        if function in _GRADIENTS and not self.gradients_asked:
            self.gradients_asked = True
            with torch._C.DisableTorchFunction():  # what is asked here is not asked by the model
                wanted = self.note(self.root, "probe", wanted_gradients).get(self.live)
            if not all(wanted):
                self.refuse("it asks whether a tensor wants a gradient, and some of its parameters want none")

    def data_of(self, tensor: torch.Tensor) -> None:
        """Writes into what is given as a tensor's data are hidden from autograd, not from a graph."""
        self.hidden[id(tensor)] = tensor

    def _read_global(self, frame: types.FrameType, action: Action) -> None:
        if action.operation == "LOAD_NAME" and action.name in frame.f_locals:
            return
        namespace, name = frame.f_globals, action.name
        source = self.note(self.fixed(namespace), "global", name)
        if name not in namespace:
            if is_outside(vars(builtins).get(name)):
                self.snapshots.take(namespace, lambda: "globals")
                self._refuse_outside(vars(builtins)[name])
            return
        self.reach(namespace[name], source)
        self._read_names(namespace[name], source, action.names)

    def _read_names(self, value: Any, source: Source, names: tuple[str, ...]) -> None:
        """Names read one after the other, as long as they are those of Python modules and classes."""
        for name in names:
            if isinstance(value, types.ModuleType):
                source, found = self.note(source, "attribute", name), vars(value).get(name, MISSING)
            elif isinstance(value, type):
                held, (found, _) = source, static_attribute(value, name)
                source = self.note(held, "class", name)
                if found is MISSING:  # a class is an object of its own class
                    source = self.note(self.note(held, "type"), "class", name)
                    found = static_attribute(type(value), name)[0]
            elif isinstance(value, types.FunctionType):
                source, found = self.note(source, "attribute", name), vars(value).get(name, MISSING)
            else:
                return
            if found is MISSING:
                return
            (self._reach_code if isinstance(value, type) else self._reach_named)(found, source)
            value = found

    def _reach_named(self, value: Any, source: Source) -> None:
        self.reach(value, source)

    # The whole.

    @contextmanager
    def watching(self, *, lenient: bool = False) -> Iterator[None]:
        """Observe what runs in this thread. State that was written is put back. Raises TraceError if there was any, or if
        something cannot be observed, unless it is `lenient`."""
        self.lenient = lenient
        collecting = gc.isenabled()
        gc.disable()  # else code that runs whenever memory is collected would count as the model's
        try:
            for each, name in ((random._inst, "Python's"), (numpy.random.mtrand._rand, "numpy's")):
                self.snapshots.take_random(each, lambda name=name: f"the state of {name} random generator")  # type: ignore[misc]
            for part, source in list(self.known.values()):
                if not self._watch(type(part)):
                    self._read_all(self.parts[id(part)][0], source)
            _active[threading.get_ident()] = self
            compiling = torch._dynamo.config.patch(error_on_nested_fx_trace=False)
            with (
                torch.compiler.set_stance("force_eager"),
                compiling,
                telling(self, threading.get_ident()),
                Tracing(self),
            ):
                yield
        finally:
            _active.pop(threading.get_ident(), None)
            self._unwatch()
            if collecting:
                gc.enable()
            written = self.snapshots.restore()
        if lenient:
            return
        if self.problem is not None:
            raise TraceError(self.problem)
        if written is not None:
            raise TraceError(f"it changes {written}, which the next call reads")

    def contract(self, constants: Mapping[str, torch.Tensor]) -> Contract:
        """What was read, as guards; of a graph's constants, those that are read from state."""
        found: dict[Source, Any] = {}
        guards = tuple(Guard(source, as_expected(source.get(self.live, found))) for source in self.order)
        tensors = {name: self.tensors[id(t)][1] for name, t in constants.items() if id(t) in self.tensors}
        for name in tensors:
            self._check_wants_no_gradient(constants[name], tensors[name])
        if any(memory_of(t) in self.memory for name, t in constants.items() if name not in tensors):
            raise TraceError("it has a second tensor over the memory of one that it keeps")
        groups = grouped(self.objects, self.live, found)
        return Contract(guards, tuple(self.aliases), tuple(self.objects), groups, tensors, self.modes)


class _Telling(types.ModuleType):
    """A Python module while it is observed."""

    def __getattribute__(self, name: str) -> Any:
        observer = _active.get(threading.get_ident())
        if observer is None or id(self) not in observer.known:
            return types.ModuleType.__getattribute__(self, name)
        return observer.attribute(self, name, types.ModuleType.__getattribute__)


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
