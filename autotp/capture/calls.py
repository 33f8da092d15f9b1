"""What a program does to opaque objects while it runs: call a method, read a value, check a constant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ..errors import TraceError
from .contract.values import is_same
from .opaque import Path, follow

# The sizes for which alone a program holds, with None where it holds for any.
Shapes: TypeAlias = tuple[tuple[int | None, ...], ...]
Own: TypeAlias = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def call_opaque(
    handle: Any,
    path: Path,
    args: Collection[Any],
    kwargs: Mapping[str, Any],
    shapes: Shapes,
    own: Own | None = None,
) -> list[torch.Tensor]:
    """Call a method of a handle for real; returns the tensors of its result, of which `own` gives what a program takes. Raises
    TraceError for other shapes."""
    with _outside():
        result = follow(handle, path, ())(*args, **kwargs)
    return _tensors(type(handle).__name__, result, shapes, own)


def read_opaque(handle: Any, path: Path, shapes: Shapes, own: Own | None = None) -> list[torch.Tensor]:
    """Read a value from a handle; returns its tensors. Raises TraceError for other shapes, and if one needs a gradient."""
    tensors = read_differentiable(handle, path, shapes, own)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        # Who put it there could not be told to expect parts of a gradient.
        raise TraceError(f"a value read from a {type(handle).__name__} needs a gradient; detach what is kept there")
    return tensors


def read_differentiable(handle: Any, path: Path, shapes: Shapes, own: Own | None = None) -> list[torch.Tensor]:
    """Read a value that may need a gradient; `own` gives this rank's parts of its tensors. Raises TraceError for other shapes."""
    with _outside():
        result = follow(handle, path, ())
    return _tensors(type(handle).__name__, result, shapes, own)


def read_number(handle: Any, path: Path) -> int:
    """Read a number from a handle."""
    with _outside():
        return int(follow(handle, path, ()))


def check_opaque(handle: Any, path: Path, expected: Any) -> None:
    """Raises TraceError unless a constant read from a handle is the one that the program was made for."""
    with _outside():
        found = follow(handle, path, ())
    if not is_same(found, expected):
        raise TraceError(f"a {type(handle).__name__} gave {found!r} to a program for {expected!r}")


def _outside() -> AbstractContextManager[Any]:
    """An object's own Python runs as it does outside of programs: to it a cut parameter is whole. Dynamo, which does not know
    how, leaves it as it is."""
    return nullcontext() if torch.compiler.is_dynamo_compiling() else torch._C._EnableTorchFunction()


# What nodes do to objects.
OF_OBJECTS = (call_opaque, check_opaque, read_differentiable, read_number, read_opaque)


@dataclass
class OpaqueCall:
    """One step that becomes a node of `target`: the call of a method or function, or the reading of a value.

    Its tensors, then its symbolic numbers are the node's operands, in the order of the flat arguments. `bound` gives its
    result while tracing; `owner` is the package that defines a method, `holding` those whose objects are in its object;
    `gradient` says whether what is read may need one.
    """

    name: str
    target: Any
    leaves: list[Any]
    spec: pytree.TreeSpec
    bound: Any
    handle: int | None = None
    path: Path = ()
    owner: str = ""
    holding: frozenset[str] = frozenset()
    gradient: bool = False
    out_spec: pytree.TreeSpec | None = None
    out_constants: dict[int, Any] = field(default_factory=dict)


torch.fx.node.has_side_effect(call_opaque)
torch.fx.node.has_side_effect(check_opaque)


def _tensors(giver: str, result: Any, shapes: Shapes, own: Own | None = None) -> list[torch.Tensor]:
    plain = type(result) is tuple and set(map(type, result)) == {torch.Tensor}
    # pytree takes longer to say so
    tensors = list(result) if plain else [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    if len(tensors) != len(shapes):
        raise TraceError(f"a {giver} gave {_several(len(tensors))} to a program for {_several(len(shapes))}")
    tensors = tensors if own is None else own(tensors)
    for tensor, shape in zip(tensors, shapes, strict=True):
        for found, size in zip(tensor.shape, shape, strict=True):
            if found != size and (size is not None or not found):
                check_shapes(giver, tensors, shapes)
                raise TraceError(f"a {giver} gave an empty value to a program for one that has something in it")
    return tensors


def check_shapes(giver: str, tensors: list[torch.Tensor], shapes: Shapes) -> None:
    """Raises TraceError unless opaque Python gave tensors of the shapes that the program was made for."""
    for tensor, shape in zip(tensors, shapes, strict=True):
        for size, own in zip(shape, tensor.shape, strict=True):
            if size is not None and size != own:
                raise TraceError(f"a {giver} gave a value of shape {list(tensor.shape)} to a program for {list(shape)}")


def _several(count: int) -> str:
    return f"{count} tensor{'s' * (count != 1)}"
