"""What a cut tensor has besides elements: sizes, memory, a gradient, hooks."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.autograd import graph as autograd_graph
from torch.utils import _pytree as pytree

from ...errors import UsageError
from .given import gradients, note_given, note_gradient, settle
from .kinds import label
from .operands import held_for
from .origin import IsCut, parts_only
from .views import WholeView

T = torch.Tensor
MSG_BATCHED = "is_grads_batched asks for several gradients of {name}, a cut parameter; call autograd.grad once for each"
_OF_GRAD = inspect.signature(torch.autograd.grad)


def of_sizes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What follows from the sizes of the whole. A compiler asks for those of the memory that it makes code for."""
    if torch._guards.TracingContext.try_get() is not None:
        with parts_only():
            return func(*args, **kwargs)
    with parts_only():
        sizes = torch.empty(args[0].origin.shape, dtype=args[0].dtype, device="meta")
    return func(sizes, *args[1:], **kwargs)


def of_type(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A new tensor that has the dtype and the device of a cut one, and nothing else; of another cut one it is a copy."""
    subject, *rest = args
    rest, kwargs = _wholes((rest, dict(kwargs)), label(func))
    return func(subject.local() if isinstance(subject, IsCut) else subject, *rest, **kwargs)


def get_data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with parts_only():
        return args[0].wrap(func(*args), args[0].memory)


def set_data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    parameter, value = args
    with parts_only():
        func(parameter, _apart(_taken(parameter, value, ".data"), value))
        if not isinstance(value, IsCut):
            note_given(parameter, parameter.origin.name, value)
    parameter.note_written()


def get_gradient(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The gradient; that of a cut parameter is cut as it is."""
    parameter = args[0]
    if gradients:
        settle(parameter)
    with parts_only():
        gradient = func(*args)
        if gradient is None or isinstance(gradient, IsCut) or not isinstance(parameter, IsCut):
            return gradient
        made = parameter.wrap(gradient)
        parameter.grad = made  # type: ignore[attr-defined]
        return made


def set_gradient(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    parameter, value = args
    with parts_only():
        if isinstance(parameter, IsCut):
            value = _own_gradient(parameter, value)
        elif isinstance(value, IsCut):
            value = value.whole(".grad of a whole parameter")
        func(parameter, value)


def _apart(part: T, value: T | None) -> T:
    """This rank's part of a value that is not cut, in memory of its own."""
    shares = type(part) is T and type(value) is T and part.untyped_storage()._cdata == value.untyped_storage()._cdata
    return part.clone() if shares else part


def _own_gradient(parameter: Any, value: T | None) -> T | None:
    """A gradient that is set, as a cut one: its memory if it is cut alike, a copy of this rank's part of any other."""
    part = None if value is None else _taken(parameter, value, ".grad")
    if part is None or isinstance(part, IsCut):
        note_gradient(parameter, None, None)
    else:
        part = _apart(part, value)
        is_plain = type(part) is T and not isinstance(value, (IsCut, WholeView))
        note_gradient(parameter, value if is_plain else None, part)
    return None if part is None else parameter.wrap(part)


def _taken(parameter: Any, value: T, what: str) -> T:
    """What this rank holds of a value that is set: of a cut one the part, of any other its own part of it."""
    if not isinstance(value, IsCut) and value.shape != parameter.origin.shape:
        raise UsageError(
            f"{what} of {parameter.origin.name} was set to a value of shape {tuple(value.shape)}; give the whole one, of"
            f" shape {tuple(parameter.origin.shape)}"
        )
    if value.layout is not torch.strided:
        raise UsageError(
            f"{what} of {parameter.origin.name}, which is cut over ranks, was set to a sparse tensor; give .to_dense()"
        )
    return held_for(parameter, value)


def autograd_grad(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Gradients with respect to cut tensors, cut as they are. Raises UsageError for several at a time."""
    given = _OF_GRAD.bind(*args, **kwargs).arguments
    inputs = given.pop("inputs")
    wanted = [inputs] if isinstance(inputs, T) else list(inputs)
    cut = [each.origin.name for each in wanted if isinstance(each, IsCut)]
    if cut and given.get("is_grads_batched"):
        raise UsageError(MSG_BATCHED.format(name=cut[0]))
    given = _wholes(given, "autograd.grad")
    zeros = given.get("materialize_grads", False)
    unused = {"materialize_grads": False, "allow_unused": True} if zeros else {}
    found = func(inputs=_edges(wanted), **{**given, **unused})
    return tuple(
        (torch.zeros_like(of) if zeros else None)
        if gradient is None
        else of.wrap(gradient)
        if isinstance(of, IsCut)
        else gradient
        for of, gradient in zip(wanted, found, strict=True)
    )


def backward(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """A backward, of what may be cut, to inputs some of which are: each gets its part of its gradient."""
    inputs = kwargs.get("inputs", args[5] if len(args) > 5 else None)
    kwargs = {name: value for name, value in kwargs.items() if name != "inputs"}
    args, kwargs = _wholes((tuple(args[:5]), kwargs), "backward")
    func(*args, inputs=None if inputs is None else _edges(inputs), **kwargs)


def _edges(inputs: Any) -> list[Any]:
    """The edges of autograd's graph by which cut tensors get their gradients. Torch is given these in their place: it then runs
    hooks, and derivatives that somebody wrote, as in any backward."""
    with parts_only():
        return [
            autograd_graph.get_gradient_edge(each) if isinstance(each, T) and isinstance(each, IsCut) else each
            for each in ([inputs] if isinstance(inputs, T) else inputs)
        ]


def _wholes(given: Any, what: str) -> Any:
    return pytree.tree_map(lambda v: v.whole(what) if isinstance(v, IsCut) else v, given)


def register_hook(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    parameter, hook = args
    with parts_only():
        return func(parameter, of_cut(parameter, hook))


def of_cut(parameter: Any, hook: Callable[[Any], Any]) -> Callable[[T], T | None]:
    """A hook that is given a cut tensor's gradient as a cut one; what it gives may be that, or whole."""
    with parts_only():
        like = parameter.wrap(parameter.detach())  # the parameter has the hook, so the hook must not have the parameter

    def with_cut(gradient: T) -> T | None:
        with _as_outside():
            result = hook(like.wrap(gradient))
        with parts_only():
            return None if result is None else plainly(_taken(like, result, "the result of a hook"))

    return with_cut


def register_after(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with parts_only():
        return func(args[0], after_backward(args[1]))


def after_backward(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A hook that runs when a parameter's gradient is there, and sees both as everybody does."""

    def outside(parameter: Any) -> Any:
        with _as_outside():
            return hook(parameter)

    return outside


_running = threading.local()
_BACKWARD = autograd_graph._engine_run_backward.__code__
# Whose Python computes in a backward by itself: torch's, ours, that of Python, and what these two write.
_MACHINERY = (
    os.path.join(Path(torch.__file__).parent, ""),  # a folder whose name only begins the same is somebody else's
    os.path.join(Path(__file__).parents[2], ""),
    str(Path(threading.__file__).parent / "contextlib.py"),
    str(Path(threading.__file__).parent / "functools.py"),
    "<autotp",
    "<eval_with_key>",
    "<frozen",
)


@contextmanager
def _as_outside() -> Iterator[None]:
    """Within a backward, let cut tensors be whole to a hook that somebody has given."""
    before, _running.hook = getattr(_running, "hook", False), True
    try:
        yield
    finally:
        _running.hook = before


def is_in_backward() -> bool:
    """Returns if this is a step of a backward: not a hook or a derivative that somebody wrote, and not a checkpoint that
    computes its forward again."""
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or getattr(_running, "hook", False):
        return False
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _BACKWARD:
        if not frame.f_code.co_filename.startswith(_MACHINERY) and "torchinductor" not in frame.f_code.co_filename:
            return False
        frame = frame.f_back
    return True


def plainly(value: T) -> T:
    """What a rank holds, as torch itself hands it on."""
    return value.as_subclass(T) if isinstance(value, IsCut) and not hasattr(value, "_spec") else value
