"""Logits as they leave a head that is cut over the vocabulary: this rank's slice, whole for code that needs them whole.

Pointwise functions, views and the cross-entropy work on the slice. Every other operator gets whole logits, at one
all-gather, so the model's own Python computes what it always did. Views are those of autograd, made below it: so it knows what
a write into one of them is a write into.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

from ...axes.layout import Leaf, factors_of, ordered
from ..collectives.single import enter, gather, is_recorded, keep_cut, slice_to_rank
from ..groups.ranks import Ranks
from .loss import cut_cross_entropy
from .tensor import CutResult, Policy, closed, gathered, part_of, stand_for

T = torch.Tensor
aten = torch.ops.aten
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
POINTWISE = frozenset({*FUNCTIONS, *(getattr(T, name) for name in METHODS)}) - {T.detach}
OPERAND = "operand"  # what a collective is of that a result's own computing needs: its plan knows nothing of that
QUOTIENTS = frozenset({T.div, T.__truediv__, torch.div})
# Below autograd: what leaves every row of logits as it is, if its result says so; what takes some; and their derivatives.
_OF_ROWS = frozenset(
    {
        *(aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default),
        *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    }
)
_SOME_ROWS = frozenset({aten.select.int, aten.slice.Tensor})
_ROWS_AGAIN = frozenset({aten.select_backward.default, aten.slice_backward.default})
_STEPS = (int, slice, torch.Tensor, type(Ellipsis))


@dataclass(eq=False)
class Head(Policy):
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
        self.reader = self.reader or self.asking
        return gather(local, self.ranks, ordered(factors_of(self.layout)), local.dim() - 1, self.layout)

    def own_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._is_cut(gradient):
            return part_of(gradient)  # type: ignore[arg-type]
        return self.own(enter(closed(gradient), self.ranks, ordered(factors_of(self.layout))))

    def of_part(self, gradient: torch.Tensor) -> torch.Tensor:
        return cut_logits(gradient, Head(self.ranks, self.layout))

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's slice."""
        return slice_to_rank(whole, self.ranks, [*[None] * (whole.dim() - 1), self.layout])

    def distributed(self, local: torch.Tensor) -> torch.Tensor:
        """A slice as the distributed tensor that it is a part of."""
        return keep_cut(local, self.ranks, ordered(factors_of(self.layout)), local.dim() - 1, self.layout)

    def cut_again(self, whole: torch.Tensor) -> torch.Tensor:
        """The same of whole logits, into which somebody may have written."""
        return self.distributed(self.own(whole))

    def on_parts(self, cut: Sequence[CutResult], func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        local = _on_slices(cut[0], func, args, kwargs) if len(cut) == 1 and not cut[0].is_whole else None
        if local is None:
            self.asking = getattr(func, "__name__", str(func))
            return NotImplemented
        self.ranks.note_computed()
        return local

    def on_part(self, func: Any, args: Any) -> Any:
        """Views, and what autograd does with gradients."""
        first = args[0]
        if func is aten.add.Tensor:
            return self._added(*args)
        if not self._is_cut(first) or first.is_whole:
            return NotImplemented
        if func in _OF_ROWS:
            like = _sizes_of(first, func, args)
            if not keeps_rows(like.shape, first.shape):
                return NotImplemented
            return first.view_of(first.local.reshape(*like.shape[:-1], first.local.shape[-1]), like, (func, args[1:]))
        if func in _SOME_ROWS and args[1] % first.dim() != first.dim() - 1:
            return first.view_of(func(first.local, *args[1:]), _sizes_of(first, func, args), (func, args[1:]))
        if func is aten.clone.default:
            return self._made(first.local.clone(), first.shape)
        if func in _ROWS_AGAIN and args[2] % len(args[1]) != len(args[1]) - 1:
            sizes = [*args[1][:-1], first.local.shape[-1]]
            return self._made(func(first.local, sizes, *args[2:]), args[1])
        return NotImplemented

    def _added(self, one: torch.Tensor, other: Any, *more: Any) -> Any:
        """The sum of two; a whole one is sliced, so that the sum is cut, unless the cut one was gathered before."""
        if more or not isinstance(other, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
            return NotImplemented
        if any(isinstance(each, CutResult) and each.is_whole for each in (one, other)):
            return NotImplemented
        parts = [each.local if self._is_cut(each) else self.own(_read(each)) for each in (one, other)]  # type: ignore[attr-defined]
        self.ranks.note_computed()
        return self._made(parts[0] + parts[1], one.shape)

    def _made(self, local: torch.Tensor, shape: Sequence[int]) -> CutResult:
        return CutResult.of(local, shape, Head(self.ranks, self.layout))

    def _is_cut(self, value: Any) -> bool:
        """Returns if a value is cut as these logits are."""
        if not isinstance(value, CutResult) or value.is_settled or not isinstance(value.policy, Head):
            return False
        return value.policy is self or value.policy.layout == self.layout

    def settled(self, value: CutResult) -> torch.Tensor:
        """Cut if logits are to be, or if a loss has read them so, and whole otherwise."""
        if value.is_whole:
            return self.cut_again(closed(value)) if self.kept and self.ranks.are_processes else gathered(value)
        if not (self.kept or self.lost):
            return gathered(value)
        return self.distributed(part_of(value)) if self.ranks.are_processes else value


def cut_logits(local: torch.Tensor, head: Head) -> CutResult:
    """The logits of which a tensor is this rank's slice, padding included."""
    return stand_for(local, (*local.shape[:-1], head.layout.size), head)


def _sizes_of(value: torch.Tensor, func: Any, args: Any) -> torch.Tensor:
    """What an operator makes of the shape and strides of a value; it has no numbers."""
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    result: torch.Tensor = func(like, *args[1:])
    return result


def _read(value: torch.Tensor) -> torch.Tensor:
    return value.whole() if isinstance(value, CutResult) else value


def _on_slices(logits: CutResult, func: Any, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The result of a function that is computed on slices; None where it needs whole logits."""
    head: Any = logits.policy
    if func is functional.cross_entropy and logits is (args[0] if args else kwargs.get("input")):
        others = {name: value for name, value in kwargs.items() if name != "input"}
        return cross_entropy_of_slices(part_of(logits), head, *args[1:], **others)
    if func in POINTWISE:
        part = part_of(logits)
        local = pointwise_of_slices(func, logits, part, head, args, kwargs, divides=func in QUOTIENTS)
        # A conversion to what it is already gives the tensor itself.
        return logits if local is part else None if local is None else cut_logits(local, head)
    if func is T.__getitem__ and args[0] is logits and takes_copies(args[1]) and takes_rows(args[1], logits.dim()):
        return cut_logits(part_of(logits)[args[1]], head)
    return None


def pointwise_of_slices(
    func: Callable[..., Any],
    logits: Any,
    part: torch.Tensor,
    head: Head,
    args: Any,
    kwargs: Mapping[str, Any],
    *,
    divides: bool,
) -> torch.Tensor | None:
    """A pointwise function on slices: another operand is sliced too, and its gradient is the sum of the ranks'. It `divides`, or
    has no quotient.

    None where it is done on the whole; so is one with an operand that is more than a row or a column, whose gradient's sum would
    be sent besides.
    """
    ranks, layout = head.ranks, head.layout
    over = ordered(factors_of(layout))
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if leaf is not logits]
    others = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    fit = all(leaf.dim() <= logits.dim() and (not leaf.dim() or leaf.shape[-1] in (1, layout.size)) for leaf in others)
    most = max(math.prod(part.shape[:-1]), layout.size)
    fit &= not any(is_recorded(leaf) and leaf.numel() > most for leaf in others)
    by_them = divides and [each is logits for each in (*args, *kwargs.values())][:2] != [True, False]
    # What is no tensor and has such a function answers in torch's place.
    fit &= all(isinstance(x, torch.Tensor) or not hasattr(x, "__torch_function__") for x in leaves)
    if not fit or by_them or "out" in kwargs or any(leaf is True for leaf in leaves):  # an activation in place
        return None

    def local(operand: Any) -> Any:
        if operand is logits:
            return part
        if not isinstance(operand, torch.Tensor):
            return operand
        operand = enter(operand, ranks, over, OPERAND)
        if not operand.dim() or operand.shape[-1] != layout.size:
            return operand
        layouts = [*[None] * (operand.dim() - 1), layout]
        own = slice_to_rank(operand, ranks, layouts)
        if divides:  # in the padding it divides by one: zero by zero is no number, and the gradient of none
            there = slice_to_rank(torch.ones_like(operand, dtype=torch.bool), ranks, layouts)
            own = own.masked_fill(~there, 1)
        return own

    args, kwargs = pytree.tree_map(local, (args, kwargs))
    result: torch.Tensor = func(*args, **kwargs)
    return result


def keeps_rows(shape: torch.Size, before: torch.Size) -> bool:
    """Returns if a view of this shape leaves every row of logits as it is."""
    return len(shape) > 0 and shape[-1] == before[-1]


def takes_copies(index: Any) -> bool:
    """Returns if an index takes what it does as a copy, and not as a view."""
    return isinstance(index, torch.Tensor) or (
        isinstance(index, tuple) and any(isinstance(i, torch.Tensor) for i in index)
    )


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
    local: torch.Tensor,
    head: Head,
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
    if rare or local.dim() != 2 or target.dim() != 1 or local.shape[0] * head.layout.size == 0:
        return None
    head.lost = True
    return cut_cross_entropy(
        local,
        target,
        head.ranks,
        head.layout,
        ignored=ignore_index,
        reduction=reduction,
        smoothing=label_smoothing,
    )
