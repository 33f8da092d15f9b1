"""One recorded run: the model's outer Python on fake tensors, or on real ones, and what is noted while it lasts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .clone import bare, clone
from .contract.modes import Modes
from .contract.observer import LenientObserver
from .contract.source import MISSING
from .functions import FunctionRules, only_shapes, opaque_functions, replace_attributes
from .grouped import GroupedProducts
from .instances import opened
from .later import Later, pairs
from .leaves import leaves_of
from .of_units import OfUnits
from .opaque import copy_opaque, tensors_of
from .parts import Parts
from .recorded import (
    Call,
    Recording,
    Sizes,
    Tensor,
    as_it_is_now,
    device_of,
    first_line,
    modes_of,
    scales_it,
    sizes_of,
    types_of,
    values_like,
    wanting_gradients_too,
    with_own_containers,
    without_places,
)
from .symbols import Symbols, as_parameter
from .units import Unit

# What the rest of the model sees of a unit's result, by the unit's shape.
Given: TypeAlias = Callable[[int, Any], Any]
# What a unit sees of its arguments.
Taken: TypeAlias = Callable[[Unit, Any, Any], tuple[Any, Any]]


class _EnoughCalled(BaseException):
    """Ends a run; the model's own handlers of errors let it pass."""


class Recorder:
    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        functions: FunctionRules,
        given: Given,
        taken: Taken,
        until: Collection[int],
        like: Recording | None,
        about: Collection[int] = (),
        *,
        real: bool = False,
        guess: bool | None = None,
        every: bool = False,
    ) -> None:
        self.every, self.about = every, frozenset(about)  # with `every` all units compute
        self.functions, self.given, self.taken, self.until = functions, given, taken, frozenset(until)
        # What was guessed, or is of values, is found anew.
        self.like = like if like is not None and like.on_fakes and not (every or real) else None
        self.recording, self.real, self.depth = Recording(), real, 0
        self.symbols = Symbols(device_of(model), called=True, guess=guess)  # inputs are where the weights are
        self.results: dict[Call, Any] = self.recording.results
        # By the unit's shape, of its first call: the unit's path, the sizes, and these without places.
        self.sizes = dict[int, tuple[str, Sizes, Sizes]]()
        self.wants: dict[int, tuple[object, ...]] = {}  # by the unit's shape: what its last call was seen to want
        # By identity: what the first unit gave in its place.
        self.firsts = dict[int, tuple[torch.Tensor, torch.Tensor]]()
        self.fakes: dict[int, torch.Tensor] = {}
        self.stands_for = dict[int, int]()  # tensors, by what stands for them, by identity
        self.read: dict[int, torch.Tensor] = {}  # by identity; kept alive, so that no identity is used again
        self.observer: LenientObserver | None = None  # while it watches
        self.recording.parts = self.recording.parts if self.like is None else self.like.parts
        self.parts = None if every or real else Parts(self.recording.parts, self.symbols.device)
        self.dense, self.model = model, self._twin(model, units)

    def _twin(self, model: nn.Module, units: Sequence[Unit]) -> nn.Module:
        by_module = {id(unit.module(model)): unit for unit in reversed(units)}
        first, paths = dict[int, nn.Module](), dict[int, str]()
        twins, modules = list[tuple[nn.Module, Unit]](), list[tuple[nn.Module, str]]()

        def unit_twin(module: nn.Module) -> nn.Module | None:
            unit = by_module.get(id(module))
            if unit is None:
                return None
            twin = bare(module)
            if unit.shape in first:
                # What the outer Python finds inside (a device, a dtype) is what the first one has; modules it may count.
                known = first[unit.shape]
                twin.__dict__ |= {"_parameters": known._parameters.copy(), "_buffers": known._buffers.copy()}
                twin.__dict__["_modules"] = Later(partial(self._inside_of, unit, module, known), module._modules)
            else:
                twin = first[unit.shape] = clone(module, self._fake)
                paths[unit.shape] = unit.path
                if self.parts is not None:
                    self.parts.watch(unit.shape, twin)
            modules.append((module, paths[unit.shape]))
            twins.append((twin, unit))
            return twin

        copied = clone(model, self._fake, unit_twin)
        self.of_units = OfUnits(modules)
        for each in twins:
            self._watch(*each)
        if self.parts is not None and id(model) not in by_module:
            self.parts.watch_around(copied, {id(twin): unit.shape for twin, unit in twins}, self.about)
        return copied

    def _inside_of(self, unit: Unit, module: nn.Module, first: nn.Module) -> Mapping[str, nn.Module | None]:
        """Copies of the modules in a unit, with the tensors of the first one of its shape, observed as all others are."""
        tensors = (
            zip(each(module, remove_duplicate=False), each(first, remove_duplicate=False), strict=True)
            for each in (nn.Module.named_parameters, nn.Module.named_buffers)
        )
        held = {id(own): other for both in tensors for (_, own), (_, other) in both}
        twin = clone(module, lambda tensor: held[id(tensor)] if id(tensor) in held else self._fake(tensor))
        replace_attributes(only_shapes, twin, self.functions)
        if self.parts is not None:
            self.parts.watch(unit.shape, twin)
        for path, part, own in pairs(twin, module):
            if path and self.observer is not None:
                self.observer.came(f"{unit.path}.{path}", part, own)
        return twin._modules

    def _watch(self, twin: nn.Module, unit: Unit) -> None:
        original = type(twin).forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.taken(unit, args, kwargs)
            leaves, call, known = self._called(unit, twin, args, kwargs)
            if known is not MISSING:
                return self.given(unit.shape, known)
            self.recording.types[call] = types_of(leaves)
            self.depth += 1
            try:
                before = self.like and self.like.result_of(call, leaves, leaving=bool(self.about))
                result = original(twin, *args, **kwargs) if before is None else before
            except Exception as error:
                result = self._stand_in(unit, error, args, kwargs)
            finally:
                self.depth -= 1
            self.results[call] = with_own_containers(result)
            return self.given(unit.shape, result)

        twin.__dict__["forward"] = forward

    def _called(self, unit: Unit, twin: nn.Module, args: Any, kwargs: Any) -> tuple[list[Any], Call, Any]:
        """Notes a call: its leaves, which count as read, what it is known by, and what is given in its place, if that is known.
        Every block of a model is called: Python need not be followed here, and nobody is told of what is asked."""
        tracing = sys.gettrace()
        sys.settrace(None)
        try:
            with torch._C.DisableTorchFunction():
                leaves = leaves_of((args, kwargs))
                self._note_read(leaves)
                call = self._note_call(unit, twin, leaves, args, kwargs)
                is_known = call in self.results and not self.every
                return leaves, call, self._again(self.results[call], leaves) if is_known else MISSING
        finally:
            sys.settrace(tracing)

    def _note_call(self, unit: Unit, twin: nn.Module, leaves: Sequence[Any], args: Any, kwargs: Any) -> Call:
        recording, shape, is_first = self.recording, unit.shape, unit.path not in self.recording.called
        recording.called.add(unit.path)
        wants = *kwargs, *[isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves]
        sizes, is_told = self._sizes(unit, twin, leaves, kwargs)
        call = shape, (*sizes, modes_of(self.symbols.device)), torch.is_grad_enabled()
        known = recording.calls.get(shape)
        if is_told and is_first:
            recording.told[unit.path] = as_it_is_now(args, kwargs)
        if known is not None:
            if wants != self.wants.get(shape):
                self.wants[shape] = wants
                recording.calls[shape] = wanting_gradients_too(known, (args, kwargs))
            if is_first and sizes != self.sizes[shape][1]:
                recording.resized[unit.path] = as_it_is_now(args, kwargs)
        elif call not in self.results:
            recording.calls[shape] = as_it_is_now(args, kwargs)
        if known is None and self.until and self.until <= recording.calls.keys():
            raise _EnoughCalled
        return call

    def _sizes(self, unit: Unit, twin: nn.Module, leaves: Sequence[Any], names: Collection[str]) -> tuple[Sizes, bool]:
        """The sizes of a call: those of the first one of its structure if it differs from that in nothing but the number that
        says which one of its siblings a unit is, and whether it does."""
        own = sizes_of(leaves, names)
        if unit.shape in self.sizes and own == self.sizes[unit.shape][1]:
            return own, False
        elsewhere = sizes_of(without_places(leaves, partial(unit.position_values, twin)), names)
        path, first, placed = self.sizes.setdefault(unit.shape, (unit.path, own, elsewhere))
        if own == first or elsewhere != placed:
            return own, False
        self.recording.told.setdefault(path, self.recording.calls[unit.shape])
        return first, True

    def _again(self, result: Any, inputs: Sequence[Any]) -> Any:
        """A result in place of another unit's: tensors like its own, and not the same ones, which calls are told apart by. In a
        stack, where each unit takes what the one before it gave, they stay the same."""
        taken = set(map(id, inputs))

        def another(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in taken:
                return tensor
            with torch.enable_grad():
                new = tensor.clone()
            self.firsts[id(new)] = tensor, new  # which keeps the identity from being used again
            return new

        if isinstance(result, Tensor):
            return another(result)
        plain = (tuple, list, dict)  # a cache that pytree could take apart stays the same cache
        return pytree.tree_map_only(torch.Tensor, another, result, is_leaf=lambda v: not isinstance(v, plain))

    def _stand_in(self, unit: Unit, error: Exception, args: Any, kwargs: Any) -> torch.Tensor:
        """What a unit that needs real values gives while recording: its first tensor.

        Blocks give what they take. Should this one not, the units after it are only planned for another call: at run
        time each is traced as it is really called.
        """
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise error
        self.recording.failed[unit.shape] = f"it cannot run on fake tensors: {first_line(error)}"
        return tensors[0]

    def _owner(self, parameter: nn.Parameter) -> str | None:
        """The name of a unit's parameter, or of what stands for it. Something that is no module may hold the former."""
        return self.of_units.name_of(self.stands_for.get(id(parameter), id(parameter)))

    def _note_read(self, leaves: Iterable[Any]) -> None:
        for leaf in [leaf for leaf in leaves if isinstance(leaf, Tensor)]:
            first, _ = self.firsts.get(id(leaf), (leaf, leaf))
            self.read[id(first)] = first

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.fakes:
            fake = values_like(tensor, self.symbols.device) if self.real else self.symbols.tensor(tensor)
            if isinstance(tensor, nn.Parameter):  # frozen or not may change, a plan stays
                fake = nn.Parameter(fake, requires_grad=False) if self.real else as_parameter(fake)
                fake.requires_grad_(fake.is_floating_point())
            else:
                fake.requires_grad_(tensor.requires_grad)
            self.fakes[id(tensor)], self.stands_for[id(fake)] = fake, id(tensor)
        return self.fakes[id(tensor)]

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Recording:
        recorder = self

        class Outside(TorchFunctionMode):
            """Notes unit parameters that meet an operator outside of their unit."""

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if not recorder.depth:
                    leaves = leaves_of((args, kwargs or {}))
                    recorder._note_read(leaves)
                    parameters = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
                    for owner in filter(None, map(recorder._owner, parameters)):
                        name = getattr(func, "__name__", str(func))
                        if name != "__get__" and not scales_it(name, args, kwargs):
                            recorder.recording.used_outside.setdefault(owner, name)
                return func(*args, **(kwargs or {}))

        # With gradients, so that the recorded calls say which of their tensors need one.
        fake_args, fake_kwargs = copy_opaque((args, dict(kwargs)), self._fake)
        mode = torch.random.fork_rng() if self.real else self.symbols.mode
        opaque = opaque_functions(only_shapes, self.model, self.functions)
        # What the run writes is put back.
        observer = LenientObserver(self.model, self.dense, frozenset(), Modes())
        with torch.enable_grad(), opaque, mode, GroupedProducts(), Outside(), observer.watching():
            observer.begin(pytree.tree_leaves((args, dict(kwargs))))
            self.observer = observer
            try:
                with suppress(_EnoughCalled):
                    self.recording.result = observer.run(self.model, *fake_args, **fake_kwargs)
            finally:
                self.observer = None
        # Whatever class holds them: the caller reads what a model returns.
        self._note_read(tensors_of(self.recording.result))
        for (shape, *_), result in self.results.items():
            tensors = [leaf for leaf in pytree.tree_leaves(opened(result)) if isinstance(leaf, torch.Tensor)]
            unread = frozenset(i for i, tensor in enumerate(tensors) if id(tensor) not in self.read)
            self.recording.unread[shape] = self.recording.unread.get(shape, unread) & unread
        return self.recording
