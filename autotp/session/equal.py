"""Whether the ranks begin with one model: a sample of every tensor is compared, before anything is cut."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake
from torch.distributed.tensor import DTensor

from ..checkpoint.lazy import Lazy
from ..errors import PlacementError
from ..runtime.groups.ranks import Ranks

SAMPLES = 16  # of every tensor
CLOSE = 1e-3  # hosts may round what their processors compute in different ways
MSG_DIFFERENT = (
    "the ranks have different numbers in {name}; build the model with the same seed on all ranks"
    " (torch.manual_seed(0) before it is made), or load the same checkpoint"
)


def check_equal_models(model: nn.Module, ranks: Ranks) -> None:
    """Raises PlacementError on every rank unless all have about the same numbers in the parameters and buffers that have data."""
    if ranks.size == 1:
        return
    found = dict(model.named_parameters()) | dict(model.named_buffers())
    named = {name: tensor for name, tensor in found.items() if _has_numbers(tensor)}
    ranks.check_agreement("\n".join(named), "tensors in the model")
    if not named:
        return
    with torch.no_grad():
        sums = [_sum_of_samples(tensor).to(ranks.device) for tensor in named.values()]
    every = torch.stack(ranks.said_by_all(torch.stack(sums)))
    apart = (every - every[0]).abs().amax(0) > CLOSE * every.abs().amax(0)
    if bool(apart.any()):
        raise PlacementError(MSG_DIFFERENT.format(name=list(named)[int(apart.nonzero()[0])]))


def _has_numbers(tensor: torch.Tensor) -> bool:
    whole = not isinstance(tensor, (DTensor, Lazy)) and tensor.layout is torch.strided
    return whole and not tensor.is_meta and not is_fake(tensor) and bool(tensor.numel())


def _sum_of_samples(tensor: torch.Tensor) -> torch.Tensor:
    """The weighted sum of some entries, in float32: every dim from its first to its last."""
    places = tuple(
        torch.linspace(0, size - 1, SAMPLES, device=tensor.device).long().clamp(0, size - 1) for size in tensor.shape
    )
    taken = tensor.detach()[places] if places else tensor.detach()
    taken = torch.view_as_real(taken) if taken.is_complex() else taken
    weights = torch.arange(1.0, taken.numel() + 1, device=tensor.device)
    return torch.nan_to_num(taken.flatten().to(torch.float32)).mul(weights).sum()
