"""Gradients with respect to cut tensors and views of them, which torch itself computes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.autograd import graph as autograd_graph

from ...errors import UsageError
from .origin import IsCut, IsView, mapped, parts_only

T = torch.Tensor
MSG_BATCHED = "is_grads_batched asks for several gradients of {name}, a cut parameter; call autograd.grad once for each"
_OF_GRAD, _OF_TENSOR = inspect.signature(torch.autograd.grad), inspect.signature(T.backward)
_NAMES = {"gradient": "grad_tensors"}  # of arguments that are called otherwise


def autograd_grad(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Gradients with respect to cut tensors, cut as they are. Raises UsageError for several at a time."""
    given = _OF_GRAD.bind(*args, **kwargs).arguments
    inputs = given.pop("inputs")
    wanted = [inputs] if isinstance(inputs, T) else list(inputs)
    cut = [each.autotp_origin.name for each in wanted if isinstance(each, IsCut)]
    if cut and given.get("is_grads_batched"):
        raise UsageError(MSG_BATCHED.format(name=cut[0]))
    given = wholes(given, "autograd.grad")
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
    args, kwargs = wholes((tuple(args[:5]), kwargs), "backward")
    func(*args, inputs=None if inputs is None else _edges(inputs, accumulated=True), **kwargs)


def backward_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The same as a function of one tensor."""
    given = _OF_TENSOR.bind(*args, **kwargs).arguments
    backward(torch.autograd.backward, (given.pop("self"),), {_NAMES.get(name, name): given[name] for name in given})


def _edges(inputs: Any, *, accumulated: bool = False) -> list[Any]:
    """The edges of autograd's graph by which cut tensors and views get their gradients. Torch is given these in their place: it
    then runs hooks, and derivatives that somebody wrote, as in any backward. What gradients are accumulated to retains them."""
    own = [inputs] if isinstance(inputs, T) else inputs
    with parts_only():
        return [_edge(each, accumulated) if isinstance(each, (IsCut, IsView)) else each for each in own]


def _edge(value: Any, accumulated: bool) -> Any:
    if accumulated:
        value.retain_grad()
    return autograd_graph.get_gradient_edge(value)


def wholes(given: Any, what: str) -> Any:
    """Whole, plain tensors in place of cut ones and of views of these."""
    return mapped(
        lambda v: v.whole(what) if isinstance(v, IsCut) else v.taken(what) if isinstance(v, IsView) else v, given
    )


DIFFERENTIATING = {torch.autograd.grad: autograd_grad, torch.autograd.backward: backward, T.backward: backward_of}
