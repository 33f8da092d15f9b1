"""The gradient of a cut parameter as tools see it: this rank's part, whose norm is that of the whole.

Clipping, optimizers and accumulation read and write the part; a norm is one collective, in which what several ranks hold
counts once, so every rank sees the dense model's. `torch._foreach_norm` takes a list: one collective for all of them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
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
        return _with_norms(func, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> CutGradient:
        copied = memo[id(self)] = CutGradient.of(self.plain().clone(), self.layouts, self.ranks)
        return copied

    def plain(self) -> torch.Tensor:
        """The part as an ordinary tensor that shares its memory."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)


class CutShard(DTensor):
    """The same where data-parallel ranks have cut the part further: a distributed tensor on their mesh, as FSDP leaves it."""

    ranks: Ranks
    layouts: tuple[Layout, ...]

    @staticmethod
    def of_shard(gradient: DTensor, layouts: Sequence[Layout], ranks: Ranks) -> CutShard:
        """The gradient of which a distributed tensor, whose memory it shares, is the tensor-parallel rank's part."""
        shard: CutShard = CutShard(gradient._local_tensor, gradient._spec, requires_grad=False)
        shard.layouts, shard.ranks = tuple(layouts), ranks
        return shard

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _with_norms(func, args, kwargs)


def _with_norms(func: Any, args: Any, kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return _HANDLERS.get(func, func)(*args, **(kwargs or {}))


# torch takes a list of gradients at once if it knows all of their classes; a norm is one collective then.
_foreach_supported_types.append(CutGradient)


def watch(owner: nn.Module, name: str, layouts: Sequence[Layout], ranks: Ranks) -> None:
    """Let gradients that a backward leaves on a parameter of a module say what they are a part of."""
    parameter = owner._parameters.get(name)
    if parameter is None or not (parameter.requires_grad and parameter.is_leaf):
        return
    hooks = parameter._post_accumulate_grad_hooks
    if hooks is None or not any(isinstance(hook, _Mark) for hook in hooks.values()):
        parameter.register_post_accumulate_grad_hook(_Mark(owner, name, layouts, ranks))


class _Mark:
    """What runs when a gradient has been accumulated. A hook that held the module would keep it alive for ever."""

    def __init__(self, owner: nn.Module, name: str, layouts: Sequence[Layout], ranks: Ranks) -> None:
        self.owner, self.name, self.layouts, self.ranks = weakref.ref(owner), name, layouts, ranks

    def __call__(self, parameter: torch.Tensor) -> None:
        if type(parameter.grad) is torch.Tensor:
            parameter.grad = CutGradient.of(parameter.grad, self.layouts, self.ranks)
        # FSDP lends the parameter for the backward, with what it has kept of earlier ones. At its end the module has its own
        # back, with a gradient.
        torch.autograd.Variable._execution_engine.queue_callback(self._mark_shard)

    def _mark_shard(self) -> None:
        owner = self.owner()
        parameter = None if owner is None else owner._parameters.get(self.name)
        if parameter is not None and type(parameter.grad) is DTensor:
            parameter.grad = CutShard.of_shard(parameter.grad, self.layouts, self.ranks)


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


def _norms(gradients: Sequence[Any], order: float, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """The norm of every gradient, those of cut ones over all ranks, at one collective.

    Raises UsageError for an order that is not positive.
    """
    if order <= 0:
        raise UsageError(f"the norm of order {order} of a cut gradient is not known; use a positive one or infinity")
    kinds = (CutGradient, CutShard)
    norms = [None if isinstance(g, kinds) else torch.linalg.vector_norm(g, order, dtype=dtype) for g in gradients]
    for kind in kinds:
        places = [i for i, gradient in enumerate(gradients) if isinstance(gradient, kind)]
        if places:
            values = _over_ranks([gradients[i] for i in places], order)
            for i, value in zip(places, values, strict=True):
                norms[i] = value.to(dtype or gradients[i].dtype)
    return norms  # type: ignore[return-value]


def _over_ranks(gradients: Sequence[CutGradient | CutShard], order: float) -> Sequence[torch.Tensor]:
    """The norms of cut gradients of one kind. The sum over ranks is one of double precision."""
    ranks, op = gradients[0].ranks, "max" if order == INFINITY else "sum"
    total = torch.stack([_contribution(gradient, order) for gradient in gradients])
    if isinstance(gradients[0], CutShard):
        spec = gradients[0]._spec
        for dim, placement in enumerate(spec.placements):
            if placement.is_shard():
                total = all_reduce(total, op, (spec.mesh, dim))
    total = ranks.all_reduce(total, (Factor(ranks.size, 1),), "norm", "parameter", op)
    norms = total if order == INFINITY else total ** (1 / order)
    if not isinstance(gradients[0], CutShard):
        return norms.unbind()
    whole = [Replicate()] * spec.mesh.ndim
    return [DTensor.from_local(norm, spec.mesh, whole, run_check=False) for norm in norms.unbind()]


def _contribution(gradient: CutGradient | CutShard, order: float) -> torch.Tensor:
    """What this rank's part adds to the sum (or the maximum) that the norm is made of."""
    part, starts = _part_of(gradient)
    wide = torch.float32 if part.dtype in (torch.float16, torch.bfloat16) else part.dtype
    if order == INFINITY:
        return (part.abs().amax() if part.numel() else part.new_zeros(())).double()
    number, positions = _shares(gradient.layouts, gradient.ranks.size)
    if not positions:
        return number * torch.linalg.vector_norm(part, order, dtype=wide).double() ** order
    powers = part.abs().double() ** order
    for dim, share in positions:
        shape = [-1 if i == dim else 1 for i in range(powers.dim())]
        here = share[starts[dim] : starts[dim] + powers.shape[dim]]
        powers = powers * here.to(powers.device, powers.dtype).view(shape)
    return number * powers.sum()


def _part_of(gradient: CutGradient | CutShard) -> tuple[torch.Tensor, Sequence[int]]:
    """What is here of a gradient, and where in the tensor-parallel rank's part it starts."""
    if isinstance(gradient, CutGradient):
        return gradient.plain(), [0] * gradient.dim()
    spec = gradient._spec
    _, starts = compute_local_shape_and_global_offset(spec.shape, spec.mesh, spec.placements)
    return gradient._local_tensor, starts


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
