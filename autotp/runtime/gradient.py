"""The gradient of a cut parameter as tools see it: this rank's part, whose norm is that of the whole.

Clipping, optimizers and accumulation read and write the part; a norm is one collective, in which what several ranks hold
counts once, so every rank sees the dense model's. `torch._foreach_norm` takes a list: one collective for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._foreach_utils import _foreach_supported_types

from ..axes.layout import Factor, Layout, factors_of, is_even, local_factors, parts_of
from ..errors import UsageError
from .ranks import Ranks

INFINITY = float("inf")


class CutGradient(torch.Tensor):
    """This rank's part of a gradient. Functions but for norms compute on the part, and give plain tensors."""

    ranks: Ranks
    layouts: tuple[Layout, ...]

    @staticmethod
    def of(part: torch.Tensor, layouts: Sequence[Layout], ranks: Ranks) -> CutGradient:
        """The gradient of which a tensor, whose memory it shares, is this rank's part."""
        gradient: CutGradient = torch.Tensor._make_subclass(CutGradient, part)
        gradient.layouts, gradient.ranks = tuple(layouts), ranks
        return gradient

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            handler = _HANDLERS.get(func)
            return func(*args, **(kwargs or {})) if handler is None else handler(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> CutGradient:
        copied = memo[id(self)] = CutGradient.of(self.plain().clone(), self.layouts, self.ranks)
        return copied

    def plain(self) -> torch.Tensor:
        """The part as an ordinary tensor that shares its memory."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)


# torch takes a list of gradients at once if it knows all of their classes; a norm is one collective then.
_foreach_supported_types.append(CutGradient)


def watch(parameter: nn.Parameter, layouts: Sequence[Layout], ranks: Ranks) -> None:
    """Let gradients that a backward leaves on a parameter say what they are a part of."""
    hooks = parameter._post_accumulate_grad_hooks
    if hooks is None or not any(isinstance(hook, _Mark) for hook in hooks.values()):
        parameter.register_post_accumulate_grad_hook(_Mark(layouts, ranks))


class _Mark:
    def __init__(self, layouts: Sequence[Layout], ranks: Ranks) -> None:
        self.layouts, self.ranks = layouts, ranks

    def __call__(self, parameter: torch.Tensor) -> None:
        if type(parameter.grad) is torch.Tensor:
            parameter.grad = CutGradient.of(parameter.grad, self.layouts, self.ranks)


@functools.lru_cache(maxsize=4096)
def _shares(layouts: tuple[Layout, ...], size: int) -> tuple[float, tuple[tuple[int, torch.Tensor], ...]]:
    """How much an element counts on each of the ranks that hold it: a number, times one for each position of some dims."""
    even = frozenset[Factor]().union(*(factors_of(layout) for layout in layouts if is_even(layout)))
    uneven = tuple(
        (dim, torch.tensor([float(parts_of(tuple(over))) for over in local_factors(layout)]))
        for dim, layout in enumerate(layouts)
        if not is_even(layout)
    )
    return parts_of(tuple(even)) / size, uneven


def _norms(gradients: Sequence[torch.Tensor], order: float, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """The norm of every gradient, those of cut ones over all ranks, at one collective.

    Raises UsageError for an order that is not positive.
    """
    if order <= 0:
        raise UsageError(f"the norm of order {order} of a cut gradient is not known; use a positive one or infinity")
    wide = [_wide(gradient, dtype) for gradient in gradients]
    cut = [(i, g) for i, g in enumerate(gradients) if isinstance(g, CutGradient)]
    ranks = cut[0][1].ranks
    norms = [torch.linalg.vector_norm(g, order, dtype=d) for g, d in zip(gradients, wide, strict=True)]
    own = torch.stack([_contribution(g, norms[i], order).double() for i, g in cut])
    total = ranks.all_reduce(own, (Factor(ranks.size, 1),), "norm", "parameter", "max" if order == INFINITY else "sum")
    for (i, _), value in zip(cut, total if order == INFINITY else total ** (1 / order), strict=True):
        norms[i] = value.to(norms[i].dtype)
    return [norm.to(dtype or gradient.dtype) for norm, gradient in zip(norms, gradients, strict=True)]


def _wide(gradient: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    narrow = gradient.dtype in (torch.float16, torch.bfloat16)
    return dtype or (torch.float32 if narrow else gradient.dtype)


def _contribution(gradient: CutGradient, norm: torch.Tensor, order: float) -> torch.Tensor:
    """What this rank's part adds to the sum (or the maximum) that the norm is made of."""
    if order == INFINITY:
        return norm
    number, positions = _shares(gradient.layouts, gradient.ranks.size)
    if not positions:
        return number * norm.double() ** order
    powers = gradient.plain().abs().double() ** order
    for dim, share in positions:
        shape = [-1 if i == dim else 1 for i in range(powers.dim())]
        powers = powers * share.to(powers.device, powers.dtype).view(shape)
    return number * powers.sum()


def _foreach_norm(tensors: Any, ord: float = 2, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    return _norms(list(tensors), float(ord), dtype)


def _norm_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one gradient: its norm over all dims is that of the whole, any other is the part's own."""

    def norm(input: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get("ord", kwargs.get("p"))
        order = 2.0 if given in (None, "fro") else given
        some_dims = (args[1] if len(args) > 1 else kwargs.get("dim")) is not None
        of_matrix = function is torch.linalg.norm and given is not None and input.dim() > 1
        if some_dims or of_matrix or not isinstance(order, (int, float)):
            return function(input, *args, **kwargs)
        return _norms([input], float(order), kwargs.get("dtype"))[0]

    return norm


def _unscale(gradients: Any, found: torch.Tensor, scale: torch.Tensor) -> None:
    """Unscaling for a gradient scaler: what one rank finds not finite, all have found, so that all skip the step."""
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)
    ranks = next(gradient.ranks for gradient in gradients if isinstance(gradient, CutGradient))
    found.copy_(ranks.all_reduce(found, (Factor(ranks.size, 1),), "norm", "parameter", "max"))


_HANDLERS: dict[Any, Callable[..., Any]] = {
    torch._foreach_norm: _foreach_norm,
    torch._amp_foreach_non_finite_check_and_unscale_: _unscale,
    **{f: _norm_by(f) for f in (torch.linalg.vector_norm, torch.linalg.norm, torch.norm, torch.Tensor.norm)},
}
