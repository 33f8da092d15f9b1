"""What the traced code holds that is no object of Python's own kind: a function asks for its state, or it is remembered."""

from __future__ import annotations

import logging
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .answers import holder, is_about_callers, is_for_good, is_outside, question
from .libraries import is_module_of_library
from .memo import cache_state, kept
from .modes import Modes
from .notes import Notes
from .numbers import REPLACED
from .probes import getter_names, given_to_getter, referent, variable_state
from .source import Source, is_a, own_attributes
from .values import ARRAYS, kind_of

_HELD = frozenset({"global", "cell", "attribute", "class"})  # how variables and attributes are found
_OF_LOGGERS = vars(logging.Logger("a logger")).keys() | {"manager", "root"}


class Probed(Notes):
    """Notes of such values, each kind in its own way."""

    def __init__(self, twin: nn.Module, live: nn.Module, varying: frozenset[tuple[str, str]], modes: Modes) -> None:
        super().__init__(twin, live, varying, modes)
        self.variables: list[tuple[Any, Any, Source]] = []  # of the context, and what they were set to
        self.keeping: set[types.CodeType] = set()  # of functions whose results are kept
        self.placed: set[Source] = set()  # where what is told apart by `is`, or by nothing, was found

    def reach(self, value: Any, source: Source) -> None:
        """What was read is held by the traced code from now on."""
        raise NotImplementedError

    def _reach_random(self, value: Any, source: Source) -> None:
        self.snapshots.take_random(value, source.__str__)

    def _reach_cache(self, value: Any, source: Source) -> None:
        self.note(source, "probe", cache_state)
        self.snapshots.take_cache(value)
        for result in (kept(value) or {}).values():
            self.returned(result, str(source))
        if isinstance(value.__wrapped__, types.FunctionType):
            self.keeping.add(value.__wrapped__.__code__)
        self.reach(value.__wrapped__, self.step(source, "slot", "__wrapped__"))

    def returned(self, result: Any, name: str) -> None:
        """What a memoising function keeps: whoever gets it may write into it."""
        if kind_of(result) in ("container", "object", "array"):
            self.snapshots.take(result, lambda: f"what {name} keeps")

    def _reach_variable(self, value: Any, source: Source) -> None:
        self.variables.append((value, variable_state(value), source))
        self._reach_probed(value, source, variable_state)

    def _refuse_reading(self, value: Any, source: Source) -> None:
        """Of a value that nothing can look into. The code goes on only where writes can be put back."""
        if isinstance(value, threading.local):
            self.snapshots.take(value, source.__str__)
        moving = not isinstance(value, threading.local)
        if moving:
            del self.known[id(value)]  # whoever reads it next is refused as well
            self.placed.discard(source)
        self.refuse(f"it reads {source}, and nothing can tell what a {type(value).__qualname__} gives", moving)

    def _reach_logger(self, value: Any, source: Source) -> None:
        """What a model's code keeps as attributes of a logger, beside what loggers have."""
        self.note(source, "names")
        for name in own_attributes(value).keys() - _OF_LOGGERS:
            self.reach(own_attributes(value)[name], self.note(source, "attribute", name))

    def _reach_getter(self, value: Any, source: Source) -> None:
        self.note(source, "probe", getter_names)
        for name in getter_names(value)[1]:
            inside = self.note(source, "inside", given_to_getter(name))
            self.reach(given_to_getter(name)(value), inside)

    def _reach_probed(self, value: Any, source: Source, probe: Callable[[Any], Any]) -> None:
        if isinstance(value, ARRAYS):
            self.note(source, "probe", probe)
            self.snapshots.take(value, source.__str__)
        else:
            self.reach(probe(value), self.note(source, "inside", probe))

    def _reach_environment(self, value: Any, source: Source) -> None:
        """Its variables are observed as they are asked for."""

    def _reach_reference(self, value: Any, source: Source) -> None:
        # The same reference is to the same parameter, or to none.
        if id(value) in self.held and id(value()) in self.own:
            self.reach_own(value(), self.step(source, "inside", referent))
            return
        self.refuse(f"{source} is a weak reference, and guards would keep alive what it is to")

    def _reach_partial(self, value: Any, source: Source) -> None:
        self._reach_slots(value, source, ("func", "args", "keywords"))

    def _reach_slots(self, value: Any, source: Source, names: tuple[str, ...]) -> None:
        for name in names:
            self.reach(getattr(value, name), self.note(source, "slot", name))

    def _ask(self, value: Any, source: Source) -> None:
        """What a library says from state of its own."""
        if is_outside(value) or (is_about_callers(value) and not is_module_of_library(self.acting)):
            self._refuse_outside(value)
        is_held = source.kind in _HELD or (source.parent is not None and source.parent.kind == "slot")  # a default
        if any(value is each for each in REPLACED) or (value is type and is_held):
            self.refuse(f"{source} is {value.__name__}, which a trace knows under its own name only")
        ask = question(value)
        if ask is not None:
            self.note(source, "probe", ask)
        if ask is holder:
            self.snapshots.take_lock(value, source.__str__)
        if is_a(value, logging.Logger):
            self._reach_logger(value, source)

    def _refuse_outside(self, function: Any) -> None:
        """Of a function that asks or tells somebody else."""
        self.refuse(f"it calls {function.__name__}, which is not about the model's state", is_for_good(function))

    def _check_wants_no_gradient(self, state: torch.Tensor | None, source: Source) -> None:
        with torch._C.DisableTorchFunction():  # what is asked here is not asked by the model
            wanted = state is not None and state.requires_grad
        if wanted:
            self.refuse(f"{source} wants a gradient and is no parameter, and a program sums those of parameters")

    def _reach_method(self, value: Any, source: Source) -> None:
        if id(value.__self__) in self.twins:
            self.holders.append((value, value.__self__))
        self._reach_slots(value, source, ("__func__", "__self__"))
