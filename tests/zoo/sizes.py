"""Small sizes for base models, beyond those of `tiny_config`: stages, towers of several modalities, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from transformers import PretrainedConfig

SHARE, PATCH = 4, 4  # of the widths of stages; pixels of a patch's side
LARGE, TABLE, IMAGE = 256, 512, 64  # what widths, tables and images in pixels are at most; larger ones shrink
_DEPTH = re.compile("depths|num_block|blocks_per_stage|num_blocks|num_block_repeats")
_WIDTHS = re.compile("hidden_sizes|embed_dim|channels|feature_sizes|conv_dim|tdnn_dim|encoder_hidden_dim|channel_list")
_WIDTH = re.compile("hidden|dim|units|channel|width|output|projection")
_TABLE = re.compile("vocab|codebook_size|num_embeddings|num_codevectors|num_position_embeddings|max_pos|out_channels")
# What multiplies the depths and widths of all stages, of models that have such numbers.
_SCALES = {"depth_coefficient": 1.0, "width_coefficient": 1 / SHARE}
# Sections of a rotary embedding over several axes, whose defaults are for heads of a full size.
SECTIONS = ([1, 1, 2], [1, 1, 0], [2, 3, 3])


def smaller(config: PretrainedConfig, *, images: bool = True) -> PretrainedConfig:
    """A copy of a configuration with stages of one block, narrow widths and, where windows allow it, small images."""
    return type(config).from_dict(_smaller(config, images))


def _smaller(config: PretrainedConfig, images: bool) -> dict[str, Any]:
    found = {}
    settings = _with_small_patches(config.to_dict(), images)
    scales = {name: min(settings[name], scale) for name, scale in _SCALES.items() if name in settings}
    for name, value in settings.items():
        inner = config.__dict__.get(name)
        if isinstance(inner, PretrainedConfig):
            found[name] = {**_smaller(inner, images), "model_type": inner.model_type}
        elif (name == "image_size" and not images) or (scales and _WIDTHS.search(name)):
            found[name] = value
        else:
            found[name] = scales.get(name, _value(name, value))
    return {name: value for name, value in found.items() if name.strip("_") not in ("out_features", "out_indices")}


def _with_small_patches(settings: dict[str, Any], images: bool) -> dict[str, Any]:
    """An image of as many patches as before, of fewer pixels: the matrix that reads one is no part of any chain."""
    patch, image = settings.get("patch_size"), settings.get("image_size")
    if not images or type(patch) is not int or patch <= PATCH or (image is not None and type(image) is not int):
        return settings
    small = {"patch_size": PATCH} | ({"image_size": image // patch * PATCH} if image else {})
    return {**settings, **small}


def _value(name: str, value: Any) -> Any:
    if type(value) is int:
        return _number(name, value)
    if isinstance(value, (list, tuple)) and value and all(type(entry) is int for entry in value):
        if _DEPTH.search(name):
            return [min(entry, 1) for entry in value]
        if _WIDTHS.search(name):
            return [entry // SHARE if entry % (2 * SHARE) == 0 else entry for entry in value]
    return value


def _number(name: str, value: int) -> int:
    if name == "image_size":
        return min(value, IMAGE)
    if _TABLE.search(name) and value > TABLE:
        return TABLE
    if name == "embed_dim":
        return value // SHARE
    return value // 8 if _WIDTH.search(name) and value >= LARGE and value % 8 == 0 else value


def with_sections(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """Copies in which a rotary embedding over several axes has other sections."""
    for sections in SECTIONS:
        made = type(config).from_dict(config.to_dict())
        for part in (made, *(getattr(made, name) for name in made.sub_configs)):
            if isinstance(getattr(part, "rope_parameters", None), dict):
                part.rope_parameters = {**part.rope_parameters, "mrope_section": sections}
        yield made
