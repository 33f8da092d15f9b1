"""What a cut tensor has besides elements: sizes, memory, a gradient, hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...errors import UsageError
from ..collectives.added import SHARED
from .backwards import as_outside
from .differentiate import wholes
from .given import gradients, note_given, note_gradient, settle
from .kinds import label, setter
from .memories import Memory, holders_of, is_same_memory, known_memory, note_memory
from .operands import fits, held_for
from .origin import IsCut, parts_only
from .views import WholeView

T = torch.Tensor
_nothing: Callable[[], Any] = lambda: None  # noqa: E731
MSG_APART = (
    "{what} of {name} was given memory of {other}, which is cut over ranks in another way, so that they cannot share it as on the"
    " dense model; give a copy, with .clone(), or make them one parameter"
)
MSG_HOOK = (
    "a hook writes into the gradient of {name}, a cut tensor, in place, and on the dense model another tensor has the memory of"
    " this gradient, which it has not here; let the hook give a new tensor: lambda g: g * 2"
)


def of_sizes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What follows from the sizes of the whole. A compiler asks for those of the memory that it makes code for."""
    if torch._guards.TracingContext.try_get() is not None:
        with parts_only():
            return func(*args, **kwargs)
    with parts_only():
        sizes = torch.empty(args[0].autotp_origin.shape, dtype=args[0].dtype, device="meta")
    return func(sizes, *args[1:], **kwargs)


def of_type(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A new tensor that has the dtype and the device of a cut one, and nothing else; of another cut one it is a copy."""
    subject, *rest = args
    rest, kwargs = wholes((rest, dict(kwargs)), label(func))
    return func(subject.local() if isinstance(subject, IsCut) else subject, *rest, **kwargs)


def get_data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with parts_only():
        args[0].autotp_memory.watch(args[0])
        return args[0].claim(func(*args), args[0].autotp_memory)


def set_data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    parameter, value = args[0], _itself(args[1])
    with parts_only():
        alike = fits(parameter, value)
        if not alike:
            _refuse_apart(parameter, value, ".data")
        part = _taken(parameter, value, ".data")
        func(parameter, part if alike else _apart(part, value))
        if not alike:
            note_given(parameter, parameter.autotp_origin.name, value.local() if isinstance(value, IsCut) else value)
    parameter.autotp_memory = value.autotp_memory if alike else Memory()


def get_gradient(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The gradient; that of a cut parameter is cut as it is."""
    parameter = args[0]
    if gradients:
        settle(parameter)
    with parts_only():
        gradient = func(*args)
        if gradient is None or isinstance(gradient, IsCut) or not isinstance(parameter, IsCut):
            return gradient
        made = parameter.claim(gradient, known_memory(gradient))
        parameter.grad = made
        return made


def set_gradient(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    parameter, value = args
    with parts_only():
        if isinstance(parameter, IsCut):
            value = _own_gradient(parameter, _itself(value))
        elif isinstance(value, IsCut):
            value = value.whole(".grad of a whole parameter")
        func(parameter, value)


def delete_gradient(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    set_gradient(setter("grad"), (args[0], None), {})


def detach_in_place(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    own = args[0]
    with parts_only():
        return own.requires_grad_(False) if own.is_leaf else func(own)


def module_load(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a loaded value becomes before it is swapped with a parameter: cut as that one is."""
    own, other = args
    if not isinstance(own, IsCut):
        return func(own, *wholes((other,), "module_load"), **kwargs)
    if not kwargs.get("assign"):
        return own.copy_(other).detach()  # type: ignore[attr-defined]
    made = own.detach()  # type: ignore[attr-defined]
    made.data = other
    return made


def _apart(part: T, value: T | None) -> T:
    """This rank's part of a value that is not cut, in memory of its own."""
    return part.clone() if value is not None and is_same_memory(part, value) else part


def _itself(value: Any) -> Any:
    """A cut tensor in place of a view that is all of it."""
    if not isinstance(value, WholeView):
        return value
    with parts_only():
        root, wanted = value.autotp_root, value.requires_grad
        alike = value.dtype is root.dtype and (value.shape, value.stride()) == (root.shape, root.stride())
    return value.autotp_cut if alike and not wanted else value


def _refuse_apart(parameter: Any, value: Any, what: str) -> None:
    """Raises UsageError for the memory of a tensor that is cut otherwise, if somebody has that: the dense model shares it."""
    cut = value.autotp_cut if isinstance(value, WholeView) else value
    if not isinstance(cut, IsCut):
        return
    with parts_only():
        held = cut._use_count() > 1  # type: ignore[attr-defined]  # by more than Python: it is the gradient of something
    own_ones = 2 + (cut.autotp_memory.counted is not None)  # the tensor itself, what was asked, and what counts
    if not held and holders_of(cut.local()) <= own_ones:
        return
    own, other = parameter.autotp_origin.name, cut.autotp_origin.name
    raise UsageError(MSG_APART.format(what=what, name=own, other=other))


def _own_gradient(parameter: Any, value: T | None) -> T | None:
    """A gradient that is set, as a cut one: itself if it is cut alike, a copy of this rank's part of any other."""
    part = None if value is None else _taken(parameter, value, ".grad")
    if part is None or isinstance(part, IsCut):
        note_gradient(parameter, None, None)
        return part
    _refuse_apart(parameter, value, ".grad")
    part = _apart(part, value)
    is_plain = type(part) is T and not isinstance(value, (IsCut, WholeView))
    note_gradient(parameter, value if is_plain else None, part)
    return parameter.wrap(part)


def _taken(parameter: Any, value: T, what: str) -> T:
    """What this rank holds of a value that is set: of a cut one the part, of any other its own part of it."""
    if not isinstance(value, IsCut) and value.shape != parameter.autotp_origin.shape:
        raise UsageError(
            f"{what} of {parameter.autotp_origin.name} was set to a value of shape {tuple(value.shape)}; give the whole one, of"
            f" shape {tuple(parameter.autotp_origin.shape)}, or let it have another one (resize_token_embeddings) before"
            " autotp.parallelize"
        )
    if value.layout is not torch.strided:
        raise UsageError(
            f"{what} of {parameter.autotp_origin.name}, which is cut over ranks, was set to a sparse tensor; give .to_dense()"
        )
    return value if fits(parameter, value) else held_for(parameter, value, what)


def register_hook(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    parameter, hook = args
    with parts_only():
        return func(parameter, of_cut(parameter, hook))


def of_cut(parameter: Any, hook: Callable[[Any], Any]) -> Callable[[T], T | None]:
    """A hook that is given a cut tensor's gradient as a cut one; what it gives may be that, or whole."""
    with parts_only():
        like = parameter.wrap(parameter.detach())  # the parameter has the hook, so the hook must not have the parameter

    def with_cut(gradient: T) -> T | None:
        with parts_only():
            given, before = _seen(like, gradient), gradient._version
        writes = given.autotp_memory.writes
        with as_outside():
            result = hook(given)
        if (gradient._version, given.autotp_memory.writes) != (before, writes) and SHARED in gradient.__dict__:
            raise UsageError(MSG_HOOK.format(name=like.autotp_origin.name))
        if result is None or result is given:
            return None
        with parts_only():
            return _for_autograd(like, result)

    return with_cut


def _seen(like: Any, gradient: T) -> Any:
    """A gradient as a hook is given it: one object for all hooks, as torch gives them. Who keeps it keeps what autograd has,
    which then makes a copy the parameter's gradient; who keeps another tensor over its memory has what becomes that."""
    earlier = gradient.__dict__.get("autotp_seen", _nothing)()
    if earlier is not None and is_same_memory(earlier, gradient) and earlier.autotp_origin is like.autotp_origin:
        return earlier
    made = like.wrap(gradient, known_memory(gradient))
    _tie(made, gradient)
    return made


def _for_autograd(like: Any, result: Any) -> T:
    """What a hook gives, as autograd takes it."""
    taken = _taken(like, result, "the result of a hook")
    if not isinstance(taken, IsCut):
        return taken.clone() if holders_of(taken) > 1 else taken
    if hasattr(taken, "_spec") or taken.requires_grad:
        return plainly(taken)
    own: T = taken.detach()  # who has it has no other, so that a tie makes no circle
    _tie(taken, own)
    return own


def _tie(cut: Any, own: T) -> None:
    """Let who keeps a cut tensor keep what autograd has in its place: autograd counts who has that."""
    cut.__dict__["autotp_under"], own.__dict__["autotp_seen"] = own, weakref.ref(cut)
    note_memory(own, cut.autotp_memory)


def register_after(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with parts_only():
        return func(args[0], after_backward(args[1]))


def after_backward(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A hook that runs when a parameter's gradient is there, and sees both as everybody does."""

    def outside(parameter: Any) -> Any:
        with as_outside():
            return hook(parameter)

    return outside


def plainly(value: T) -> T:
    """What a rank holds, as torch itself hands it on."""
    return value.as_subclass(T) if isinstance(value, IsCut) and not hasattr(value, "_spec") else value
