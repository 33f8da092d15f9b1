"""What the models of diffusers are called with: latents, texts, times and places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch

from .made import BATCHES, Made, Numbers, made

CHANNELS, SIDE, GRID, FRAMES = 4, 8, 4, 2  # of latents; GRID is their side in patches of two
WORDS, TEXT = 6, 32  # how long a text is and how wide
# Four heads of sixteen, and two layers of each kind.
HEADS: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 16}
AXES = (4, 6, 6)  # of a rotary embedding over time, height and width


def case(name: str, settings: dict[str, Any], call: Callable[[Numbers], dict[str, Any]]) -> Callable[[], Made]:
    """A class of diffusers with these settings."""
    return made(lambda: getattr(diffusers, name)(**settings), call)


def alike(call: Callable[[Numbers], dict[str, Any]]) -> Callable[[Numbers], dict[str, Any]]:
    """A call with a list that has an entry for each of the batch, which is the same in both calls: their lists must agree."""

    def same(numbers: Numbers) -> dict[str, Any]:
        numbers.batch = BATCHES[0]
        return call(numbers)

    return same


def image(numbers: Numbers, channels: int = CHANNELS, side: int = SIDE) -> torch.Tensor:
    """A batch of latent images."""
    return numbers(numbers.batch, channels, side, side)


def clip(numbers: Numbers, channels: int = CHANNELS, frames: int = FRAMES, side: int = SIDE) -> torch.Tensor:
    """A batch of latent clips."""
    return numbers(numbers.batch, channels, frames, side, side)


def patches(numbers: Numbers, width: int = 16) -> torch.Tensor:
    """A batch of latent images as patches in a row."""
    return numbers(numbers.batch, GRID * GRID, width)


def text(numbers: Numbers, width: int = TEXT, length: int = WORDS) -> torch.Tensor:
    """A batch of encoded texts."""
    return numbers(numbers.batch, length + numbers.more, width)


def mask(numbers: Numbers, length: int = WORDS, kind: torch.dtype = torch.bool) -> torch.Tensor:
    """That all of a text is to be read."""
    return torch.ones(numbers.batch, length + numbers.more, dtype=kind)


def times(numbers: Numbers) -> torch.Tensor:
    """A step for each of the batch."""
    return numbers.ids(numbers.batch, below=100).float()


def shares(numbers: Numbers) -> torch.Tensor:
    """A time between zero and one for each of the batch."""
    return times(numbers) / 100


def places(numbers: Numbers, axes: int = 3) -> dict[str, torch.Tensor]:
    """Where patches and words are, for models that are told."""
    at = torch.arange(GRID).repeat_interleave(GRID), torch.arange(GRID).repeat(GRID)
    images = torch.stack([torch.zeros(GRID * GRID), *at, *[torch.zeros(GRID * GRID)] * (axes - 3)], -1)
    return {"img_ids": images, "txt_ids": torch.zeros(WORDS + numbers.more, axes)}
