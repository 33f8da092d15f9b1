"""What runs while a unit is traced: functions that begin, instructions that read or write, functions of torch."""

from __future__ import annotations

import builtins
import gc
import sys
import types
from collections.abc import Set
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from .actions import ABOUT, SUBCLASSES, Action, past_access
from .answers import is_outside
from .frames import IMPORTS, MSG_HIDDEN, is_observed
from .kept import keeper, runs_again
from .laying import LAYOUTS, asked, asks_for_order, is_asked_of_all, storage_of
from .libraries import foreign_library, is_module_of_library
from .modes import Modes
from .names import Names
from .numbers import INSTEAD, STANDS_FOR, is_instead
from .of_tensors import LEAVES, MEMORY, NUMBERS, OF_PYTHON, OF_THE_TENSOR, TEXTS
from .probes import environment_state
from .source import MISSING, Source, held_at
from .values import kind_of, may_write, memory_of

_GRADIENT = torch.Tensor.grad.__get__  # type: ignore[union-attr]
_WANTS = frozenset({torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__})  # type: ignore[attr-defined]
_WANTED = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_BUILTINS = dict(vars(builtins))  # those of Python's own
# Classes of which no tensor of a trace is, by what asks for them.
_NONE = frozenset[str]()
_CLASSES = {"type": frozenset({"Tensor", "Parameter"}), "isinstance": frozenset({"Parameter"})}
_OF_A_CLASS = frozenset({"type", "__class__"})


# What code of libraries asks of its own objects, and code of a model may ask of what is given.
_OF_THE_MODEL = {
    "MATCH_CLASS": "it matches something by its class, and what stands for a value in a trace has another",
    "IS_OP": "it asks whether what it is given is something of its own, and a program is not told which it is",
}
_INSIDE = frozenset({"__closure__", "__defaults__", "__kwdefaults__", "__getattribute__", "__context__", "cache_info"})
_ASKING = frozenset({"getattr", "hasattr", "attrgetter"})  # by words, which code has as constants
_OF_TENSORS = (torch.overrides.__file__, torch._tensor.__file__)


def _behind_torch(frame: types.FrameType | None) -> types.FrameType | None:
    """Who has called what torch's own tensors do in Python."""
    while frame is not None and frame.f_code.co_filename in _OF_TENSORS:
        frame = frame.f_back
    return frame


class Instructions(Names):
    """Notes of what functions and instructions read and write."""

    def __init__(self, twin: nn.Module, live: nn.Module, varying: frozenset[tuple[str, str]], modes: Modes) -> None:
        super().__init__(twin, live, varying, modes)
        self.hidden: dict[int, torch.Tensor] = {}
        self.met: dict[int, Any] = {}  # objects that are new, or were read as their methods ran
        self.entered: set[tuple[int, Source]] = set()
        self.own_code: set[types.CodeType] = set()  # of functions that the trace itself makes
        self.ran: set[types.CodeType] = set()  # but for code of libraries whose versions say what it is
        self.operators: set[str] = set()  # of libraries of which nothing is known
        self.inputs: dict[int, int] = {}  # by where they lie, their numbers
        self.laid: set[int] = set()  # those of which it matters how they lie in memory
        self.strides = False  # if these were asked for
        self.keeper, self.repeats = keeper(), False

    def enter(self, frame: types.FrameType) -> None:
        """A function begins: what its closure and its defaults hold is state, unless the trace has made it."""
        code = frame.f_code
        self.own_code.update(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        named = {*code.co_names, *(constant for constant in code.co_consts if isinstance(constant, str))}
        self.name(named)
        is_library = is_module_of_library(frame.f_globals)
        if not is_library:
            self.ran.add(code)
        words = OF_PYTHON.intersection(each for each in code.co_consts if isinstance(each, str))
        inside = (
            _INSIDE & named
            | (words if not _ASKING.isdisjoint(code.co_names) else set())
            | ({SUBCLASSES} & set(code.co_consts))
        )
        if not (is_library or not inside or code.co_name == "__getattribute__" or self._reads_its_own(frame, inside)):
            self.refuse(f"it asks for {min(inside)} of something, and nothing tells what that gives", moving=True)
        if not is_library and code.co_argcount:
            self._meet(frame.f_locals.get(code.co_varnames[0]))
            if code.co_name == "__del__":
                self.forbid("it lets go of an object that does something as it goes, and a program makes none")
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
                self._reach_held(cell.get(self.live), cell, function)
            for name in ("__defaults__", "__kwdefaults__"):
                if getattr(function, name):
                    slot = self.note(source, "slot", name)
                    self.reach(getattr(function, name), slot)

    def _reads_its_own(self, frame: types.FrameType, inside: Set[str]) -> bool:
        """Returns if, in a run of no contract, a method asks its own object for attributes past its class. They count as read."""
        own = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
        names = past_access(frame.f_code) if self.lenient and inside == {"__getattribute__"} else None
        known, source = self.known.get(id(own), (None, self.root))
        if names is None or isinstance(own, nn.Module):
            return False
        for name in names if known is own else ():
            self._note_attribute(own, name, source)
        return True

    def _meet(self, value: Any) -> None:
        """Code runs that is given an object. If nothing has read it, a library may have it and hand it on, as a logger does
        with its handlers: should it be read later on, it counts as it is now."""
        if id(value) in self.known or id(value) in self.met or id(value) in self.twins or kind_of(value) != "object":
            return
        # Nothing is collected while a trace runs, so what it has made itself is still young.
        is_new = any(each is value for each in gc.get_objects(generation=0))
        if is_new and hasattr(type(value), "__del__"):  # which is not kept: it is to go where the code lets go of it
            self.forbid(f"it makes a {type(value).__qualname__}, which does something as it goes")
            return
        self.met[id(value)] = value
        if not is_new:
            self.snapshots.foresee(value)

    def ask(self, frame: types.FrameType) -> None:
        """The environment is asked for a variable, or for all, or one is set. Or something is imported by its name."""
        if frame.f_code is IMPORTS:
            self.import_named(frame)
            return
        environment, method = frame.f_locals["self"], frame.f_code.co_name
        source = self.fixed(environment)
        if method == "__getitem__":
            self.note(source, "item", frame.f_locals["key"])
        elif method in ("__iter__", "__len__", "__repr__", "copy", "__or__", "__ror__"):
            self.note(source, "probe", environment_state)
        elif method != "__init__":
            self.snapshots.take(environment._data, lambda: "the environment")
            self.refuse("it changes the environment, which outlives the call")

    def _reach_held(self, value: Any, source: Source, function: Any) -> None:
        """As `reach`; a module of the unit may stand in a closure, which the twin's has its twin in."""
        if id(value) in self.twins:
            self.holders.append((function, value))
        else:
            self.reach(value, source)

    def act(self, frame: types.FrameType, action: Action) -> None:
        """An instruction reads a global, or writes what outlives the call."""
        self.acting = frame.f_globals
        if action.operation == "IMPORT_NAME":
            self.import_module(frame, action)
            return
        if action.operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            self._read_global(frame, action)
            return
        if action.operation == SUBCLASSES:
            if not is_module_of_library(frame.f_globals):
                self.read_subclasses(frame, action)
            return
        if action.operation == ABOUT:
            self._asked_about(frame, action)
            return
        if action.operation in _OF_THE_MODEL:
            if not (
                is_module_of_library(frame.f_globals) or (action.operands and self._are_told(frame, action.operands))
            ):
                self.refuse(_OF_THE_MODEL[action.operation])
            return
        if action.operation.endswith("DEREF") and frame.f_code in self.own_code:
            return  # a variable of a call that is traced
        if action.operation.endswith("GLOBAL"):
            self.snapshots.take_entry(frame.f_globals, action.name)
        for function, _ in self.functions.get(frame.f_code, ()):
            if action.name in function.__code__.co_freevars:
                self.snapshots.take_cell(function.__closure__[function.__code__.co_freevars.index(action.name)])
        self.refuse(f"it sets {action.name}, which outlives the call")

    def _are_told(self, frame: types.FrameType, operands: tuple[str, ...]) -> bool:
        """Returns if guards, or a call's key, say whether two things are one: two of the state, or two arguments."""
        if set(operands) == {"given"}:
            return frame.f_code is getattr(getattr(type(self.live), "forward", None), "__code__", None)
        first = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
        told = {"global": True, "closure": frame.f_code not in self.own_code, "first": id(first) in self.known}
        return all(told.get(operand, False) for operand in operands)

    def call(self, function: Any, args: Any, kwargs: Any) -> None:
        """A function of torch runs; some leave in a tensor what a graph does not have, some read what is in one."""
        self._note_keeper(keeper())
        self.operators |= foreign_library(function)
        if may_write(function, kwargs):
            for tensor in (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)):
                if memory_of(tensor) in self.memory:
                    self.snapshots.take_numbers(tensor)
                if id(tensor) in self.hidden or id(tensor._base) in self.hidden:
                    self.refuse(MSG_HIDDEN)
        if isinstance(function, types.FunctionType) and not is_module_of_library(function.__globals__):
            name = function.__qualname__
            self.refuse(f"{name} has taken the place of a function of torch, and runs more than once in a trace")
        if isinstance(function, types.FunctionType):
            self.note_named(function)
        if function in TEXTS and is_observed(_behind_torch(sys._getframe(2))):
            self.refuse("it writes a tensor as text, and a trace has others")
        if function in LEAVES:
            self.refuse(f"it calls {LEAVES[function]} of a tensor, of which a program knows nothing")
        if function in NUMBERS and not isinstance(args[0], FakeTensor):
            self.refuse("it reads the numbers of a tensor that it keeps")
        if function == _GRADIENT:
            self.refuse("it reads the gradient of a tensor")
        if function in MEMORY and (function is torch.Tensor.__dlpack__ or is_observed(sys._getframe(2))):
            self.refuse(
                f"it asks for {MEMORY[function]} of a tensor, and nothing sees what is written there", moving=True
            )
        self._asked_of_a_tensor(function, args)

    def _note_keeper(self, hook: Any) -> None:
        """The block may say who keeps its tensors for a backward; what a checkpoint writes, its backward writes again."""
        if hook is not self.keeper and not runs_again(hook):
            self.refuse("it says how tensors are kept for the backward, and a program keeps others")
        self.repeats |= hook is not self.keeper

    def _asked_of_a_tensor(self, function: Any, args: Any) -> None:
        """What a tensor of a trace says otherwise than the one that it stands for."""
        if self.lenient:
            return  # such a run gives no program
        if asks_for_order(function) and is_observed(_behind_torch(sys._getframe(3))):
            self.laid |= asked(function, args[0], self.inputs)
            self.strides |= function is torch.Tensor.stride
            self.note_strides(is_asked_of_all(function), storage_of(args[0]))
        if function in LAYOUTS and is_observed(_behind_torch(sys._getframe(3))):
            self.note_strides(False, storage_of(args[0]))
        if function in OF_THE_TENSOR:
            self.refuse(f"it asks a tensor for {OF_THE_TENSOR[function]}, which no program knows")
        if function == _WANTED:
            self.note_wanted()
        if function in _WANTS:
            self.check_wants(args[0], bool(args[1]) if len(args) > 1 else True)

    def _asked_about(self, frame: types.FrameType, action: Action) -> None:
        """Python itself says something of a value: what stands for a tensor or a number is something else."""
        if is_module_of_library(frame.f_globals) or self.lenient:
            return
        value = held_at(frame, action.operands)
        is_other = isinstance(value, torch.Tensor) or type(value) in STANDS_FOR
        if is_other or (value is MISSING and action.name not in ("__doc__", "__module__")):
            self.refuse(f"it asks for {action.name} of what may be a tensor or a number, and a trace has others")

    def data_of(self, tensor: torch.Tensor) -> None:
        """Writes into what is given as a tensor's data are hidden from autograd, not from a graph."""
        self.hidden[id(tensor)] = tensor

    def _read_global(self, frame: types.FrameType, action: Action) -> None:
        if action.operation == "LOAD_NAME" and action.name in frame.f_locals:
            return
        namespace, name = frame.f_globals, action.name
        source = self.note(self.fixed(namespace), "global", name)
        if name not in namespace or is_instead(name, namespace[name]):
            if not is_module_of_library(namespace):
                if name == "vars":
                    self._asked_about(frame, action)
                self._asked_of_who_it_is(name, frame, action.compared)
            found = vars(builtins).get(name)
            inner = [vars(object).get(chain[0]) for chain in action.chains if chain and found is object]
            for named in (found, *inner):
                if is_outside(named):
                    self.snapshots.take(namespace, lambda: "globals")
                    self._refuse_outside(named)
            if found is _BUILTINS.get(name):
                self._put_instead(namespace, name)
            else:
                self.reach(found, self.note(self.fixed(vars(builtins)), "item", name))
            return
        self.refuse_named(namespace[name])
        self.reach_named(namespace[name], source)
        self.read_chains(namespace[name], source, action)

    def _put_instead(self, namespace: dict[str, Any], name: str) -> None:
        """Among the globals of code that names one of Python's functions, what tells it of numbers and objects."""
        if name in INSTEAD and name not in namespace and (name != "type" or not is_module_of_library(namespace)):
            self.snapshots.put_instead(namespace, name, INSTEAD[name])

    def _asked_of_who_it_is(self, name: str, frame: types.FrameType, compared: bool) -> None:
        """What a trace has in the place of tensors and modules answers for itself."""
        if not _CLASSES.get(name, _NONE).isdisjoint(frame.f_code.co_names):
            self.refuse("it asks for the class of a tensor, and a trace has others")
        if name == "int" and compared and not _OF_A_CLASS.isdisjoint(frame.f_code.co_names):
            self.refuse("it compares the class of something with int, and sizes have another in a trace")
        if name in ("id", "hash"):
            self.refuse(f"it asks for the {name} of something, and a trace has another module in the block's place")
