"""Models of diffusers: its transformers, UNets and autoencoders."""

from __future__ import annotations

from collections.abc import Callable

from . import (
    diffusion_clips,
    diffusion_coders,
    diffusion_images,
    diffusion_nets,
    diffusion_sounds,
    diffusion_texts,
    diffusion_videos,
)
from .made import Made

CASES: dict[str, Callable[[], Made]] = {
    **diffusion_images.CASES,
    **diffusion_texts.CASES,
    **diffusion_videos.CASES,
    **diffusion_clips.CASES,
    **diffusion_sounds.CASES,
    **diffusion_nets.CASES,
    **diffusion_coders.CASES,
}
