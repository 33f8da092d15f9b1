"""Attributes that the traced code asks for: of objects, of the unit's modules, of tensors that stand for its state."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .frames import between, is_observed, is_read_by_torch
from .laying import storage_of, strides_of
from .libraries import is_module_of_library
from .modes import Modes
from .probes import wanted_gradients
from .reach import HOOKS_BY_NAME, Reach
from .source import MISSING, Source, is_a, own_attributes, static_attribute
from .values import CONTAINERS

_PARTS = frozenset({"_modules", "_parameters", "_buffers"})
# The code that looks for one name in the dict of a module's attributes.
_FINDING = frozenset(
    getattr(nn.Module, name).__code__
    for name in ("__getattr__", "__setattr__", "__delattr__", "__setstate__", "register_buffer", "register_parameter")
)
# What gives all that an object holds, to copy and to pickle it; that of all objects asks for `__getstate__`.
_REDUCES = frozenset({"__reduce__", "__reduce_ex__"})
_OF_OBJECTS = (vars(object)["__reduce__"], vars(object)["__reduce_ex__"])


def _asking(frame: types.FrameType | None) -> types.FrameType | None:
    """Who asks a module for something, behind the module's own way to find it."""
    while frame is not None and frame.f_code.co_filename == torch.nn.modules.module.__file__:
        frame = frame.f_back
    return frame


def _is_read_by_torch(value: Any, reader: types.FrameType | None) -> bool:
    """Returns if torch's own Python reads an object of a model's class for the model."""
    return not issubclass(type(value), (nn.Module, types.ModuleType)) and is_read_by_torch(reader)


def _asks_for_state(written: Any) -> bool:
    return isinstance(written, types.FunctionType) or any(written is each for each in _OF_OBJECTS)


class Attributes(Reach):
    """Notes of what is asked for, from where Python finds it."""

    def __init__(self, twin: nn.Module, live: nn.Module, varying: frozenset[tuple[str, str]], modes: Modes) -> None:
        super().__init__(twin, live, varying, modes)
        self.state: dict[int, tuple[Any, Source]] = {}  # what stands for parameters and buffers
        self.gradients_asked = False

    @between
    def attribute(self, value: Any, name: str, original: Callable[[Any, str], Any]) -> Any:
        """An attribute of an object that the traced code asks for."""
        reader = sys._getframe(2)
        if id(value) in self.twins:
            if is_observed(_asking(reader)):
                self.refuse(
                    f"it keeps {type(value).__name__}, a part of its own, where a trace cannot put another in its place"
                )
            return original(value, name)
        if self.known[id(value)][0] is not value or not (is_observed(reader) or _is_read_by_torch(value, reader)):
            return original(value, name)
        source = self.known[id(value)][1]
        if id(value) in self.parts:
            return self._of_module(value, name, source, original, reader)
        if is_a(value, types.ModuleType):
            if name == "__dict__":
                self._read_all_names(value, source)
                return original(value, name)
            entry = self.note(source, "attribute", name)  # which may not be there
            found = original(value, name)
            if name in own_attributes(value):
                self.reach_named(found, entry)
            return found
        self._note_attribute(value, name, source)
        found = original(value, name)
        return self.twins.get(id(found), found)

    def _read_all_names(self, module: types.ModuleType, source: Source) -> None:
        """Of a Python module. A library's has too many to look at."""
        if is_module_of_library(own_attributes(module)):
            self.refuse(f"it asks {module.__name__}, a library's module, for all that it has")
        self._read_all(module, source)

    @between
    def _of_module(
        self, twin: nn.Module, name: str, source: Source, original: Callable[[Any, str], Any], reader: types.FrameType
    ) -> Any:
        live, path = self.parts[id(twin)]
        if name in _PARTS:
            self._note_parts(twin, live, name, source)
            return original(twin, name)
        if (path, name) in self.varying or (not path and name == "forward"):
            return original(twin, name)
        if name in HOOKS_BY_NAME:
            if not self.lenient:  # such a run is of modules without hooks
                self._note_hooks(source, HOOKS_BY_NAME[name])
            self.snapshots.take(own_attributes(live)[name], lambda: f"{source}.{name}")
            return original(twin, name)
        if name == "__dict__":
            if reader.f_code not in _FINDING:
                self._read_all(live, source)
            return original(twin, name)
        for kind, held in (("parameter", twin._parameters), ("buffer", twin._buffers)):
            if name in held and name not in own_attributes(twin):
                self._note_tensor(twin, live, kind, name, source)
                return original(twin, name)
        if name in twin._modules and name not in own_attributes(twin):
            return original(twin, name)
        self._note_attribute(live, name, source)
        found = original(twin, name)
        if is_a(found, CONTAINERS):
            self.snapshots.take(found, lambda: f"{source}.{name}")
        return self.twins.get(id(found), found)

    def _note_parts(self, twin: nn.Module, live: nn.Module, name: str, source: Source) -> None:
        """All that a module holds of one kind: which names these have, in their order, and the buffers behind them. Which module
        or parameter a name has is asked at every call."""
        self.note(source, "order", name)
        if name == "_buffers":
            for each in twin._buffers:
                self._note_tensor(twin, live, "buffer", each, source)

    def _note_tensor(self, twin: nn.Module, live: nn.Module, kind: str, name: str, source: Source) -> None:
        """A parameter or a buffer."""
        held = (twin._parameters if kind == "parameter" else twin._buffers)[name]
        self.state[id(held)] = held, self.note(source, kind, name)
        if kind == "buffer":
            self._check_wants_no_gradient(live._buffers.get(name), source)

    def _note_attribute(self, value: Any, name: str, source: Source) -> None:
        """Where Python looks for an attribute: at what the class says, and in the object itself."""
        if name == "__class__":
            self.note(source, "type")
            return
        if name == "__dict__":
            self._read_all(value, source)
            return
        written, from_class = self._class_attribute(value, name, source)
        if name == "__getstate__" or (name in _REDUCES and not _asks_for_state(written)):
            self._read_all(value, source)  # which C does where nothing observes it
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
            if is_a(value, nn.Module):  # whose modules and parameters are asked for at every call
                self.note(source, "buffer", name)

    def _class_attribute(self, value: Any, name: str, source: Source) -> tuple[Any, Source]:
        """What the class of an object has under a name, and the source of that."""
        written, _ = static_attribute(type(value), name)
        return written, self.note(self.note(source, "type"), "class", name)

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

    def note_strides(self, all_of_them: bool, storage: int) -> None:
        """How buffers and plain tensors lie in memory: those that are asked about, and those that nothing tells from them. A
        parameter may be cut, and lies in order in a trace: that is noted where it is asked for what is true of a whole one."""
        with torch._C.DisableTorchFunction():
            held = [(t, storage_of(t), source) for t, source in self.state.values() if isinstance(t, torch.Tensor)]
        for tensor, own, source in held:
            is_asked, is_buffer = own == storage, source.kind == "buffer"
            if (is_asked and is_buffer) or (all_of_them and (is_asked or is_buffer)):
                found = self.note(source, "probe", strides_of).get(self.live)
                if found != strides_of(tensor):
                    self.refuse(f"it asks how {source} lies in memory, whose numbers are not in their order")
        for _, source in self.tensors.values():  # views of them have no memory in a trace that says whose they are
            self.note(source, "probe", strides_of)

    def note_wanted(self) -> None:
        """It is asked which tensors want gradients: a trace is as if all parameters did."""
        if not self.gradients_asked:
            self.gradients_asked = True
            with torch._C.DisableTorchFunction():  # what is asked here is not asked by the model
                wanted = self.note(self.root, "probe", wanted_gradients).get(self.live)
            if not all(wanted):
                self.refuse("it asks whether a tensor wants a gradient, and some of its parameters want none")

    def check_wants(self, tensor: torch.Tensor, wanted: bool) -> None:
        """A tensor is told to want a gradient, or none. No graph has that; it may be so already."""
        parameter = self._live_parameter(tensor)
        with torch._C.DisableTorchFunction():
            before = (tensor if parameter is None else parameter).requires_grad
        if parameter is not None:
            self.note(self.root, "probe", wanted_gradients)
        elif before:
            self.note_wanted()
        if before is not wanted:
            self.refuse("it says whether a tensor wants a gradient, which outlives the call")

    def _live_parameter(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The parameter of the unit that a tensor of the trace stands for."""
        for number, (own, _) in self.parts.items():
            for name, held in self.known[number][0]._parameters.items():
                if held is tensor:
                    return own._parameters.get(name)
        return None

    def set(self, name: str) -> None:
        """An attribute of a tensor is set."""
        self.refuse(f"it sets {name} of a tensor, which outlives the call")
