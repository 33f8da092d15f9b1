"""What tensors of the state look like to a program."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Looks:
    """What a program knows of a tensor of the state. A parameter may be frozen or not."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    wants_gradient: bool
    kind: type

    @staticmethod
    def of(tensor: torch.Tensor) -> Looks:
        is_parameter = isinstance(tensor, nn.Parameter)  # whatever class it is of: it may be cut
        wants = tensor.requires_grad and not is_parameter
        return Looks(tuple(tensor.shape), tensor.dtype, wants, nn.Parameter if is_parameter else type(tensor))

    def are_of(self, tensor: torch.Tensor) -> bool:
        """Returns if a tensor looks so; every parameter of every block is asked."""
        is_parameter = isinstance(tensor, nn.Parameter)
        kind, wants = nn.Parameter if is_parameter else type(tensor), tensor.requires_grad and not is_parameter
        return (
            kind is self.kind
            and wants == self.wants_gradient
            and tensor.dtype is self.dtype
            and tensor.shape == self.shape
        )
