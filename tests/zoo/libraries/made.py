"""What a library's file gives for a model, and the tensors that its calls are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
BATCHES = (2, 3)  # of the two calls


@dataclass(frozen=True)
class Made:
    """A model with random weights, and two calls of different sizes."""

    model: nn.Module
    calls: list[Call]


class Numbers:
    """Random tensors of one call. `batch` is its batch; `more` what a length that may differ grows by, from call to call."""

    def __init__(self, index: int) -> None:
        self.batch, self.more = BATCHES[index], 4 * index
        self.generator = torch.Generator().manual_seed(index)

    def __call__(self, *shape: int) -> torch.Tensor:
        """Normally distributed numbers."""
        return torch.randn(*shape, generator=self.generator)

    def ids(self, *shape: int, below: int = 64) -> torch.Tensor:
        """Whole numbers from 1 on."""
        return torch.randint(1, below, shape, generator=self.generator)


def made(build: Callable[[], nn.Module], call: Callable[[Numbers], Any]) -> Callable[[], Made]:
    """What makes a model and its calls: `call` gives a tensor, a tuple of arguments, or a dict of them."""

    def make() -> Made:
        return Made(build(), [_as_call(call(Numbers(index))) for index in range(len(BATCHES))])

    return make


def _as_call(given: Any) -> Call:
    if isinstance(given, dict):
        return (), given
    return (given if isinstance(given, tuple) else (given,)), {}
