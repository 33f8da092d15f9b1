"""What a rank holds of a parameter, as tests look at it, and how far what it computes is from what is right."""

from __future__ import annotations

import torch

from autotp.runtime.cut.origin import IsCut


def held(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a cut tensor, padding included; any other one as it is."""
    return tensor.local() if isinstance(tensor, IsCut) else tensor


def held_by(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a rank holds of every parameter, by all of their names."""
    return {name: held(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}


def distance(found: list[torch.Tensor], true: list[torch.Tensor]) -> float:
    """The largest difference, infinite where shapes or numbers of tensors differ."""
    if [tensor.shape for tensor in found] != [tensor.shape for tensor in true]:
        return float("inf")
    return max(float((a - b).abs().max()) for a, b in zip(found, true, strict=True))
