"""Functions that hand tensors on to C++ without asking their class: these get the whole of a cut one, or refuse it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._functorch import eager_transforms, vmap
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils import _pytree as pytree

from ...errors import UsageError
from ...outside.answers import answering
from ...outside.methods import function_of, is_class_method
from .backwards import is_in_backward
from .origin import IsCut, mapped, parts_only
from .saving import share_in_files
from .views import WholeView, refuse_shared
from .whole import Lent

# Each with what is around the gathering: a transform hands a tensor on to the level that it has just begun, from below it.
_TAKERS: tuple[tuple[Any, str, Callable[[], AbstractContextManager[Any]]], ...] = (
    (torch.autograd.Function, "apply", nullcontext),
    (torch.autograd, "_make_grads", nullcontext),
    (NestedTensor, "__torch_function__", nullcontext),
    (torch._C.ScriptFunction, "__call__", nullcontext),
    (torch._C.ScriptMethod, "__call__", nullcontext),
    (eager_transforms, "_wrap_for_grad", temporarily_pop_interpreter_stack),
    (vmap, "_add_batch_dim", temporarily_pop_interpreter_stack),
)
MSG_SWAP = (
    "swap_tensors would put a tensor in the place of {name} that is not cut over ranks as it is; give {name} its values: under"
    " torch.no_grad(), parameter.copy_(other)"
)
_set = torch.Tensor.set_


@functools.cache
def give_wholes() -> None:
    """Let these functions be given wholes, from the first cut tensor on, and keep dynamo out of what computes with cut ones."""
    trace_rules.add(__name__.rpartition(".")[0])
    torch.utils.swap_tensors = _swapping(torch.utils.swap_tensors)
    torch.Tensor.data, torch.Tensor.grad = _Attribute("data"), _Attribute("grad")  # type: ignore[assignment]
    torch.Tensor.set_ = _setting  # type: ignore[method-assign]
    share_in_files()
    torch.overrides.has_torch_function = answering(torch.overrides.has_torch_function, IsCut)  # type: ignore[assignment]
    for owner, name, below in _TAKERS:
        held = vars(owner)[name]
        if is_class_method(held):
            setattr(owner, name, classmethod(_with_wholes(function_of(held), below)))
        else:
            setattr(owner, name, _with_wholes(getattr(owner, name), below))


class _Attribute:
    """An attribute of tensors that torch writes without asking what it is given. Asked of torch's class it is what it was: torch
    and its compiler know it by that."""

    def __init__(self, name: str) -> None:
        self.own = vars(torch._C.TensorBase)[name]
        self.get, self.set, self.delete = self.own.__get__, self.own.__set__, self.own.__delete__

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        return self.own if tensor is None else self.get(tensor)

    def __set__(self, tensor: Any, value: Any) -> None:
        if not isinstance(tensor, (IsCut, WholeView)):
            refuse_shared(value)
        self.set(tensor, value)

    def __delete__(self, tensor: Any) -> None:
        self.delete(tensor)


@functools.wraps(_set)
def _setting(self: Any, *args: Any, **kwargs: Any) -> Any:
    for value in () if isinstance(self, IsCut) else (*args, *kwargs.values()):
        refuse_shared(value)
    return _set(self, *args, **kwargs)


def _swapping(swap: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Torch's swap of two tensors, for such as are cut alike: what a program computes with stays cut as it was."""

    @functools.wraps(swap)
    def swapping(t1: Any, t2: Any) -> None:
        cut = [each for each in (t1, t2) if isinstance(each, IsCut)]
        if cut and not (type(t1) is type(t2) and t1.autotp_origin.fits(t2.autotp_origin)):
            raise UsageError(MSG_SWAP.format(name=cut[0].autotp_origin.name))
        with parts_only() if cut else nullcontext():
            swap(t1, t2)

    return swapping


def _with_wholes(function: Callable[..., Any], below: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def taking(*args: Any, **kwargs: Any) -> Any:
        if not (torch._C._is_torch_function_enabled() and _has_cut(args, kwargs) and not _is_machinery(args)):
            return function(*args, **kwargs)
        lent = Lent(function.__name__, counted=False)
        with below():
            args, kwargs = mapped(lent, (args, kwargs))
        result = function(*args, **kwargs)
        lent.take_over()
        return result

    return taking


def _is_machinery(args: tuple[Any, ...]) -> bool:
    """Returns if torch or we ask: in a backward, or by a derivative of our own or one that torch hands a cut tensor on with. One
    that is given a function runs somebody's code, as a checkpoint does, in its backward too."""
    if is_in_backward():
        return True
    is_ours = isinstance(args[0], type) and args[0].__module__.startswith(("torch.", "autotp."))
    return is_ours and not any(callable(value) and not isinstance(value, torch.Tensor) for value in args[1:])


def _has_cut(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    leaves = (
        args if not kwargs and all(isinstance(a, torch.Tensor) for a in args) else pytree.tree_leaves((args, kwargs))
    )
    return any(isinstance(leaf, (IsCut, WholeView)) for leaf in leaves)
