"""Logits as they leave a head that is cut over the vocabulary: this rank's slice, whole for code that needs them whole.

Pointwise functions, views and the cross-entropy work on the slice. Every other operator gets whole logits, at one
all-gather, so the model's own Python computes what it always did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

from ...axes.layout import Leaf, factors_of, ordered
from ..collectives.single import enter, gather, keep_cut, slice_to_rank
from ..cut.origin import IsCut
from ..cut.views import WholeView
from ..groups.ranks import Ranks
from .loss import cut_cross_entropy

T = torch.Tensor
# Pointwise functions, all of them smooth at zero, which stands in the padding of a slice: methods by name, and functions.
METHODS = (
    *("float", "double", "half", "bfloat16", "to", "contiguous", "clone", "detach", "neg", "__neg__", "tanh", "clamp"),
    *("mul", "__mul__", "__rmul__", "div", "__truediv__", "add", "__add__", "__radd__", "sub", "__sub__"),
    *("abs", "__abs__", "cos", "exp", "relu", "sigmoid", "sin", "square"),
)
FUNCTIONS = (
    *(torch.tanh, torch.neg, torch.mul, torch.div, torch.add, torch.sub, torch.clamp, torch.clone),
    *(torch.abs, torch.cos, torch.exp, torch.relu, torch.sigmoid, torch.sin, torch.square),
    *(functional.gelu, functional.relu, functional.sigmoid, functional.silu, functional.softplus, functional.tanh),
)
POINTWISE = frozenset({*FUNCTIONS, *(getattr(T, name) for name in METHODS)})
_QUOTIENTS = frozenset({T.div, T.__truediv__, torch.div})
VIEWS = frozenset({T.view, T.reshape, T.flatten, T.unsqueeze, T.squeeze, torch.reshape, torch.flatten, torch.squeeze})
_STEPS = (int, slice, torch.Tensor, type(Ellipsis))


@dataclass
class Head:
    """Where logits come from, shared by all that is made of them: whether the model is to return them cut (`kept`), whether a
    loss has read them cut, which function is asking for them, and which was the first to need them whole."""

    ranks: Ranks
    layout: Leaf
    kept: bool = False
    lost: bool = False
    asking: str = ""
    reader: str = ""

    def gathered(self, local: torch.Tensor) -> torch.Tensor:
        """The whole of a slice."""
        return gather(local, self.ranks, ordered(factors_of(self.layout)), local.dim() - 1, self.layout)

    def distributed(self, local: torch.Tensor) -> torch.Tensor:
        """A slice as the distributed tensor that it is a part of."""
        return keep_cut(local, self.ranks, ordered(factors_of(self.layout)), local.dim() - 1, self.layout)

    def cut_again(self, whole: torch.Tensor) -> torch.Tensor:
        """The same of whole logits, into which somebody may have written."""
        return self.distributed(slice_to_rank(whole, self.ranks, [*[None] * (whole.dim() - 1), self.layout]))


class _Open(torch.autograd.Function):
    """Forward, cut logits of a slice; backward, this rank's slice of the gradient of whole ones."""

    @staticmethod
    def forward(ctx, local, head):  # type: ignore[no-untyped-def]
        ctx.head, ctx.dim = head, local.dim() - 1
        return _wrapped(local, head)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        gradient = enter(gradient, ctx.head.ranks, ordered(factors_of(ctx.head.layout)))
        return slice_to_rank(gradient, ctx.head.ranks, [*[None] * ctx.dim, ctx.head.layout]), None


def _wrapped(local: torch.Tensor, head: Head) -> CutLogits:
    shape = (*local.shape[:-1], head.layout.size)
    return torch.Tensor._make_wrapper_subclass(CutLogits, shape, dtype=local.dtype, device=local.device)


class _Close(torch.autograd.Function):
    """Whole logits of cut ones."""

    @staticmethod
    def forward(ctx, logits):  # type: ignore[no-untyped-def]
        return logits.whole()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient


class CutLogits(torch.Tensor):
    """Logits of which this rank holds a slice of the last dim. They have the shape of the whole."""

    head: Head
    local: torch.Tensor
    _whole: torch.Tensor | None

    @staticmethod
    def of(local: torch.Tensor, head: Head) -> CutLogits:
        """The logits of which a tensor is this rank's slice, padding included."""
        logits: CutLogits = (_Open.apply if _is_recorded(local) else _wrapped)(local, head)
        logits.__dict__.update(head=head, local=local, _whole=None)
        return logits

    def whole(self) -> torch.Tensor:
        """Whole logits without a history, gathered at the first use; all ranks must come here together."""
        if self._whole is None:
            with torch.no_grad():
                head = self.head
                head.reader = head.reader or head.asking
                self._whole = head.gathered(self.local)
        return self._whole

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"CutLogits({tuple(self.shape)}, local {tuple(self.local.shape)}, {self.dtype})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, (IsCut, WholeView)) for kind in types):
            return NotImplemented  # a cut parameter's own function makes it whole first
        with torch._C.DisableTorchFunctionSubclass():
            result = _on_slices(func, args, kwargs)
            if result is not None:
                return result
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, CutLogits):
                    leaf.head.asking = getattr(func, "__name__", str(func))
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        given = pytree.tree_map_only(CutLogits, CutLogits.whole, (args, kwargs or {}))
        result = func(*given[0], **given[1])
        written = next((arg for arg in args if isinstance(arg, CutLogits) and arg._whole is result), None)
        return result if written is None else written


def _on_slices(func: Any, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The result of a function that is computed on slices; None where the logits must be, or are already, whole."""
    logits = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, CutLogits)]
    if len(logits) != 1 or logits[0]._whole is not None:
        return None
    if func is functional.cross_entropy and logits[0] is (args[0] if args else kwargs.get("input")):
        return cross_entropy_of_slices(*args, **kwargs)
    local: torch.Tensor | None = None
    if func in POINTWISE:
        local = pointwise_of_slices(func, logits[0], args, kwargs)
    elif func in VIEWS and args[0] is logits[0]:
        local = _viewed(func, logits[0], args, kwargs)
    elif func is T.__getitem__ and args[0] is logits[0]:
        local = logits[0].local[args[1]] if takes_rows(args[1], logits[0].dim()) else None
    return None if local is None else CutLogits.of(local, logits[0].head)


def pointwise_of_slices(
    func: Callable[..., Any], logits: Any, args: Any, kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """A pointwise function on slices: another operand is sliced too, and its gradient is the sum of the ranks'."""
    ranks, layout = logits.head.ranks, logits.head.layout
    over = ordered(factors_of(layout))
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if leaf is not logits]
    others = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    fit = all(leaf.dim() <= logits.dim() and (not leaf.dim() or leaf.shape[-1] in (1, layout.size)) for leaf in others)
    divides = func in _QUOTIENTS and not (args and args[0] is logits)
    if not fit or divides or "out" in kwargs or any(leaf is True for leaf in leaves):  # an activation in place
        return None

    def local(operand: Any) -> Any:
        if operand is logits:
            return logits.local
        if not isinstance(operand, torch.Tensor):
            return operand
        operand = enter(operand, ranks, over)
        along = operand.dim() > 0 and operand.shape[-1] == layout.size
        return slice_to_rank(operand, ranks, [*[None] * (operand.dim() - 1), layout]) if along else operand

    args, kwargs = pytree.tree_map(local, (args, kwargs))
    result: torch.Tensor = func(*args, **kwargs)
    return result


def _viewed(func: Callable[..., Any], logits: CutLogits, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """A view on slices, where it leaves every row of logits as it is."""
    shape = func(torch.empty(logits.shape, device="meta"), *args[1:], **kwargs).shape
    if not keeps_rows(shape, logits.shape):
        return None
    return logits.local.reshape(*shape[:-1], logits.local.shape[-1])


def keeps_rows(shape: torch.Size, before: torch.Size) -> bool:
    """Returns if a view of this shape leaves every row of logits as it is."""
    return len(shape) > 0 and shape[-1] == before[-1]


def takes_rows(index: Any, dims: int) -> bool:
    """Returns if an index into so many dims leaves the last one as it is."""
    steps = index if isinstance(index, tuple) else (index,)
    if not steps or any(isinstance(step, bool) or not isinstance(step, _STEPS) for step in steps):
        return False
    *before, last = steps
    if isinstance(last, slice) and last == slice(None):
        return True
    if any(step is Ellipsis for step in before):
        return False
    flags = [step.dim() for step in steps if isinstance(step, torch.Tensor) and step.dtype in (torch.bool, torch.uint8)]
    return sum(flags) + len(steps) - len(flags) - (last is Ellipsis) < dims


def cross_entropy_of_slices(
    input: Any,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    """`F.cross_entropy` of cut logits; None for a form that is computed on whole ones."""
    rare = weight is not None or size_average is not None or reduce is not None or target.is_floating_point()
    if rare or input.dim() != 2 or target.dim() != 1 or math.prod(input.shape) == 0:
        return None
    input.head.lost = True
    return cut_cross_entropy(
        input.local,
        target,
        input.head.ranks,
        input.head.layout,
        ignored=ignore_index,
        reduction=reduction,
        smoothing=label_smoothing,
    )


def settled_logits(logits: CutLogits) -> torch.Tensor:
    """Logits as a model returns them: cut if they are to be, or if a loss has read them so, and whole otherwise."""
    head = logits.head
    if logits._whole is not None:
        return head.cut_again(closed(logits)) if head.kept and head.ranks.are_processes else closed(logits)
    if not (head.kept or head.lost):
        return closed(logits)
    return head.distributed(logits.local) if head.ranks.are_processes else logits


def closed(value: torch.Tensor) -> torch.Tensor:
    """Whole logits for cut ones, with their history; any other tensor as it is."""
    if not isinstance(value, CutLogits):
        return value
    return _Close.apply(value) if _is_recorded(value) else value.whole()


def _is_recorded(value: torch.Tensor) -> bool:
    """Returns if autograd records what is done with a value."""
    return torch.is_grad_enabled() and value.requires_grad
