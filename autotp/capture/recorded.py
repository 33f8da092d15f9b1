"""What is heard of units while a model is recorded: what they are called with, and what is read of what they give."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import TraceError
from .capturing import known_so_far
from .opaque import copy_opaque
from .signature import autocast_dtype
from .state import CONSTANTS
from .units import Unit, parameters_of

Tensor = torch.Tensor  # in a run that is observed it takes a while to ask torch for it
_SIZED = (torch.Size, *CONSTANTS)

# The sizes of a call's tensors, its numbers and words, as text: some are symbols.
Sizes: TypeAlias = tuple[str, ...]
# The unit's shape, the sizes and modes, and whether gradients are on.
Call: TypeAlias = tuple[int, tuple[object, ...], bool]
# How a run is made that cannot be on fakes: as arguments of a recorder.
Way: TypeAlias = Mapping[str, bool]
# The positional and the named ones.
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Recording:
    """The first call of every unit shape, and of units (by path) that are called with other sizes than the first of their shape;
    parameters that the outer Python uses by itself, and which tensors of a unit's result (by their number) nobody reads; why a
    unit shape could not run; in which ways it ran, if not on fakes, and why conditions were guessed; what calls of units gave,
    and the model; the first calls of units that are told which one of their siblings they are. A shape that was renamed has an
    origin. It `is_sure` that other ways fail for the Python around units, and not for what was given in the place of results of
    units that could not run."""

    calls: dict[int, Arguments] = field(default_factory=dict)
    resized: dict[str, Arguments] = field(default_factory=dict)
    origins: dict[int, int] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    used_outside: dict[str, str] = field(default_factory=dict)
    unread: dict[int, frozenset[int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    guessed: str = ""
    ways: tuple[Way, ...] = ()
    is_sure: bool = True
    told: dict[str, Arguments] = field(default_factory=dict)
    results: dict[Call, Any] = field(default_factory=dict)
    types: dict[Call, list[Any]] = field(default_factory=dict)  # of the tensors of such a call
    parts: dict[Hashable, Recording] = field(default_factory=dict)  # what modules in units gave, by what they are
    result: Any = None

    @property
    def on_fakes(self) -> bool:
        """Returns if it all ran on fakes, and nothing was guessed."""
        return not self.ways

    def result_of(self, call: Call, leaves: Sequence[Any], *, leaving: bool = False) -> Any:
        """What a unit gave in such a call, as new fake tensors, if all sizes are numbers and, unless `leaving`, it was given
        nothing that it can have left something in; else None."""
        known = self.results.get(call)
        if known is None or call[0] in self.failed or self.types[call] != types_of(leaves):
            return None
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] if leaving else leaves
        if not all(map(is_plain, (*given, *pytree.tree_leaves(known)))):
            return None

        def another(tensor: torch.Tensor) -> torch.Tensor:
            wanted = tensor.requires_grad and torch.is_grad_enabled()
            new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            return new.requires_grad_(wanted)

        return pytree.tree_map_only(torch.Tensor, another, known)

    def as_units(self, shapes: Mapping[int, int]) -> Recording:
        """What is known for a run with some units taken apart: what the others gave, where the shape of each has another number
        (in `shapes`, by this one's), and how it has to run."""
        if self.ways:  # results of values are found anew
            return Recording(ways=self.ways if self.is_sure else (), guessed=self.guessed)
        calls = {(shapes[shape], sizes, on): (shape, sizes, on) for shape, sizes, on in self.results if shape in shapes}
        failed = {shapes[shape]: reason for shape, reason in self.failed.items() if shape in shapes}
        results, types = ({new: each[old] for new, old in calls.items()} for each in (self.results, self.types))
        return Recording(results=results, types=types, failed=failed, parts=self.parts)

    def call_of(self, unit: Unit) -> Arguments:
        """The first call of a unit, or one of the same sizes."""
        own = self.resized.get(unit.path) or self.told.get(unit.path)
        return own or self.calls[self.origins.get(unit.shape, unit.shape)]

    def rename(self, unit: Unit, new: int) -> None:
        """Know of some units of a shape by another number too, of which this one is the first."""
        shape = unit.shape
        self.origins[new] = self.origins.get(shape, shape)
        if shape in self.calls:
            self.calls[new] = self.call_of(unit)
        if shape in self.unread:
            self.unread[new] = self.unread[shape]

    def add(self, other: Recording) -> None:
        """Know what another run has called and read too."""
        new = other.calls.keys() - self.calls.keys()
        self.failed |= {shape: reason for shape, reason in other.failed.items() if shape in new}
        self.calls = other.calls | self.calls
        self.resized, self.told = other.resized | self.resized, other.told | self.told
        self.called |= other.called
        self.used_outside = other.used_outside | self.used_outside
        both = self.unread.keys() & other.unread.keys()
        self.unread = other.unread | self.unread | {shape: self.unread[shape] & other.unread[shape] for shape in both}


def sizes_of(leaves: Iterable[Any], names: Iterable[str]) -> Sizes:
    """What tells a call from one that gives something else: its leaves' sizes, and the names of its keyword arguments."""
    sized = [leaf.shape if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return *names, *[str(leaf) for leaf in sized if isinstance(leaf, _SIZED)]


def modes_of(device: torch.device) -> tuple[torch.dtype | None, torch.dtype]:
    """What else the types of a call's results depend on: whether operators cast by themselves, and to what."""
    return autocast_dtype(device.type), torch.get_default_dtype()


def device_of(model: nn.Module) -> torch.device | None:
    """Where a model's weights are; None if they have no data."""
    known, key = known_so_far(), (device_of, id(model))
    if key not in known:
        first = next((parameter for parameter in parameters_of(model) if not parameter.is_meta), None)
        known[key] = model, None if first is None else first.device  # with the model, which keeps its identity
    device: torch.device | None = known[key][1]
    return device


def with_own_containers(result: Any) -> Any:
    """A result in lists and dicts of its own: whoever got it may put something else into those."""
    return pytree.tree_map(lambda leaf: leaf, result, is_leaf=lambda value: type(value) not in (tuple, list, dict))


def without_places(leaves: Iterable[Any], places: Callable[[], tuple[int, ...]]) -> list[Any]:
    """The leaves of a call with words instead of the numbers that say which one of its siblings a unit is, one of `places`."""
    leaves = list(leaves)
    known = places() if any(type(leaf) is int for leaf in leaves) else ()
    return [f"place {known.index(leaf)}" if type(leaf) is int and leaf in known else leaf for leaf in leaves]


def types_of(leaves: Iterable[Any]) -> list[torch.dtype]:
    """The types of the tensors of a call."""
    return [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)]


def is_plain(leaf: Any) -> bool:
    """Returns if this is a constant, or a tensor whose sizes are numbers; of a parameter it counts which one it is."""
    if not isinstance(leaf, torch.Tensor):
        return isinstance(leaf, CONSTANTS)
    return not isinstance(leaf, nn.Parameter) and all(isinstance(size, int) for size in leaf.shape)


def as_it_is_now(args: Any, kwargs: Any) -> Arguments:
    """A call whose Python objects keep the state they have before it; tracing says what it cannot copy."""

    def wanting(tensor: torch.Tensor) -> torch.Tensor:
        # Gradients may be turned off in eval mode: a plan is for training.
        return tensor if torch.is_grad_enabled() else tensor.detach().requires_grad_(tensor.is_floating_point())

    with suppress(TraceError):
        args, kwargs = copy_opaque((args, kwargs), wanting)
    return args, kwargs


def wanting_gradients_too(known: Arguments, other: Arguments) -> Arguments:
    """A call whose tensors want gradients where those in the same places of another call do: a stack's first unit may be given
    data, and less than the others."""
    leaves, spec = pytree.tree_flatten(known)
    its, its_spec = pytree.tree_flatten(other)
    if spec != its_spec:
        placed = dict(pytree.tree_flatten_with_path(other)[0])
        its = [placed.get(path) for path, _ in pytree.tree_flatten_with_path(known)[0]]
    wanting = [_wants_alone(*pair) for pair in zip(leaves, its, strict=True)]
    if not any(wanting):
        return known
    new = [leaf.detach().requires_grad_() if wants else leaf for leaf, wants in zip(leaves, wanting, strict=True)]
    args, kwargs = pytree.tree_unflatten(new, spec)
    return args, kwargs


def _wants_alone(leaf: Any, same: Any) -> bool:
    both = isinstance(leaf, torch.Tensor) and isinstance(same, torch.Tensor) and leaf.dim() == same.dim()
    return both and same.requires_grad and not leaf.requires_grad


def values_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Values that the run may change: a parameter's own, which it does not; of an input without data, small numbers."""
    if tensor.is_meta and not isinstance(tensor, nn.Parameter):
        return (torch.arange(tensor.numel(), device=device) % 7).reshape(tensor.shape).to(tensor.dtype)
    return tensor.detach() if isinstance(tensor, nn.Parameter) else tensor.detach().clone()


def scales_it(name: str, args: tuple[Any, ...], kwargs: Any) -> bool:
    """Returns if a parameter is multiplied in place with a number, which does the same to every slice of it."""
    return name in ("mul_", "div_") and len(args) == 2 and isinstance(args[1], (int, float)) and not kwargs


def first_line(error: Exception) -> str:
    """The class of an error, and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}"
