"""One recorded run: the model's outer Python on fake tensors, or on real ones, and what is noted while it lasts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .clone import bare, clone
from .contract.modes import Modes
from .contract.observer import Observer
from .contract.source import own_attributes
from .functions import FunctionRules, only_shapes, opaque_functions, replace_attributes
from .grouped import GroupedProducts
from .instances import opened
from .later import Later, pairs
from .opaque import copy_opaque, tensors_of
from .parts import Parts
from .recorded import (
    Call,
    Recording,
    Sizes,
    Tensor,
    as_it_is_now,
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
        *,
        real: bool = False,
        guess: bool | None = None,
        every: bool = False,
    ) -> None:
        self.every = every  # unit computes its own results
        self.functions, self.given, self.taken, self.until = functions, given, taken, frozenset(until)
        # What was guessed, or is of values, is found anew.
        self.like = like if like is not None and like.on_fakes and not (every or real) else None
        self.recording, self.real, self.depth = Recording(on_fakes=not real and guess is None), real, 0
        device = next((p.device for p in model.parameters() if p.device.type != "meta"), None)
        # Inputs without data stand for ones where the weights are.
        self.symbols = Symbols(device, called=True, guess=guess)
        self.results: dict[Call, Any] = self.recording.results
        # By the unit's shape, of its first call: the unit's path, the sizes, and these without places.
        self.sizes: dict[int, tuple[str, Sizes, Sizes]] = {}
        self.wants: dict[int, tuple[object, ...]] = {}  # by the unit's shape: what its last call was seen to want
        # By identity: what the first unit gave in its place.
        self.firsts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.fakes: dict[int, torch.Tensor] = {}
        self.copied: list[tuple[nn.Module, str]] = []  # modules of units, with the path of the first one of each shape
        self.read: dict[int, torch.Tensor] = {}  # by identity; kept alive, so that no identity is used again
        self.observer: Observer | None = None  # while it watches
        if self.like is not None:
            self.recording.parts = self.like.parts
        self.parts = None if every or real else Parts(self.recording.parts, self.symbols.device)
        self.dense, self.model = model, self._twin(model, units)

    def _twin(self, model: nn.Module, units: Sequence[Unit]) -> nn.Module:
        by_module = {id(unit.module(model)): unit for unit in reversed(units)}
        first, paths = dict[int, nn.Module](), dict[int, str]()

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
            self.copied.append((module, paths[unit.shape]))
            self._watch(twin, unit, module)
            return twin

        return clone(model, self._fake, unit_twin)

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

    def _watch(self, twin: nn.Module, unit: Unit, module: nn.Module) -> None:
        original = type(twin).forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            is_first = unit.path not in self.recording.called
            self.recording.called.add(unit.path)
            args, kwargs = self.taken(unit, args, kwargs)
            with torch._C.DisableTorchFunction():  # nobody is told of what is asked here
                leaves = pytree.tree_leaves((args, kwargs))
                self._note_read(leaves)
                sizes, is_told = self._sizes(unit, module, leaves, kwargs)
                call = unit.shape, (*sizes, modes_of(self.symbols.device)), torch.is_grad_enabled()
                known = self.recording.calls.get(unit.shape)
                if is_told and is_first:
                    self.recording.told[unit.path] = as_it_is_now(args, kwargs)
                if known is not None:
                    wants = *kwargs, *(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
                    if wants != self.wants.get(unit.shape):
                        self.wants[unit.shape] = wants
                        self.recording.calls[unit.shape] = wanting_gradients_too(known, (args, kwargs))
                    if is_first and sizes != self.sizes[unit.shape][1]:
                        self.recording.resized[unit.path] = as_it_is_now(args, kwargs)
                elif call not in self.results:
                    self.recording.calls[unit.shape] = as_it_is_now(args, kwargs)
            if self.until and self.until <= self.recording.calls.keys():
                raise _EnoughCalled
            if call in self.results and not self.every:
                return self.given(unit.shape, self._again(self.results[call], leaves))
            self.recording.types[call] = types_of(leaves)
            with self._inside():
                try:
                    before = None if self.like is None else self.like.result_of(call, leaves)
                    result = original(twin, *args, **kwargs) if before is None else before
                except Exception as error:
                    result = self._stand_in(unit, error, args, kwargs)
            self.results[call] = with_own_containers(result)
            return self.given(unit.shape, result)

        twin.__dict__["forward"] = forward

    def _sizes(
        self, unit: Unit, module: nn.Module, leaves: Sequence[Any], names: Collection[str]
    ) -> tuple[Sizes, bool]:
        """The sizes of a call: those of the first one of its structure if it differs from that in nothing but the number that
        says which one of its siblings a unit is, and whether it does."""
        own = sizes_of(leaves, names)
        if unit.shape in self.sizes and own == self.sizes[unit.shape][1]:
            return own, False
        elsewhere = sizes_of(without_places(leaves, partial(unit.position_values, module)), names)
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
            new = tensor.clone()
            self.firsts[id(new)] = tensor, new  # which keeps the identity from being used again
            return new

        plain = (tuple, list, dict)  # a cache that pytree could take apart stays the same cache
        with torch._C.DisableTorchFunction(), torch.enable_grad():
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

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @cached_property
    def owners(self) -> dict[int, str]:
        """The names of the parameters of units, and of what stands for them, by identity."""
        found: dict[int, str] = {}
        for module, path in self.copied:
            # Something that is no module may hold them itself.
            for name, parameter in _parameters_in(module, path):
                for held in (parameter, self.fakes.get(id(parameter), parameter)):
                    found.setdefault(id(held), name)
        return found

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
            self.fakes[id(tensor)] = fake
        return self.fakes[id(tensor)]

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Recording:
        recorder = self

        class Outside(TorchFunctionMode):
            """Notes unit parameters that meet an operator outside of their unit."""

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if not recorder.depth:
                    leaves = pytree.tree_leaves((args, kwargs or {}))
                    recorder._note_read(leaves)
                    parameters = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
                    for owner in [recorder.owners[id(p)] for p in parameters if id(p) in recorder.owners]:
                        name = getattr(func, "__name__", str(func))
                        if name != "__get__" and not scales_it(name, args, kwargs):
                            recorder.recording.used_outside.setdefault(owner, name)
                return func(*args, **(kwargs or {}))

        # With gradients, so that the recorded calls say which of their tensors need one.
        fake_args, fake_kwargs = copy_opaque((args, dict(kwargs)), self._fake)
        mode = torch.random.fork_rng() if self.real else self.symbols.mode
        opaque = opaque_functions(only_shapes, self.model, self.functions)
        observer = Observer(self.model, self.dense, frozenset(), Modes())  # what the run writes is put back
        with torch.enable_grad(), opaque, mode, GroupedProducts(), Outside(), observer.watching(lenient=True):
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


def _parameters_in(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters in a module, with their names. In a run that is observed it takes long to ask modules themselves."""
    waiting, seen = [(path, module)], set[int]()
    while waiting:
        path, part = waiting.pop()
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            own = own_attributes(part)
            yield from ((f"{path}.{name}", held) for name, held in own["_parameters"].items() if held is not None)
            waiting += [(f"{path}.{name}", inner) for name, inner in reversed(own["_modules"].items())]
