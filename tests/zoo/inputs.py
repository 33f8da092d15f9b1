"""Calls of a base model, by what its `forward` takes: token ids, images, clips, waves, spectrograms, series.

Layouts differ between families of one modality (a spectrogram's bands come first or last, an image's patches come as a
picture or packed), so there are several calls to try; each comes in two sizes.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

SIZES = ((3, 13), (5, 17))  # batch and sequence of the two calls
SIDE, GRID = 64, 4  # of images without a size of their own in pixels; of packed ones in patches
SAMPLES, FRAMES = 400, 8  # of a wave and of a spectrogram, for every element of a sequence
MOST = 40  # calls to try

# What a call may need besides its required arguments, in the order of trying.
FURTHER: tuple[tuple[str, ...], ...] = (
    (),
    ("pixel_values",),
    ("input_ids",),
    ("bbox",),
    ("bbox", "pixel_values"),
    ("input_features",),
    ("input_ids", "input_features"),
    ("visual_feats", "visual_pos"),
    ("decoder_input_ids",),
    ("decoder_input_values",),
    ("actions", "rewards", "returns_to_go", "timesteps"),
    ("pixel_attention_mask", "spatial_shapes"),
    ("pixel_values", "pixel_attention_mask", "spatial_shapes"),
    ("target_sizes",),
    ("encoder_hidden_states",),
    ("future_values", "future_time_features"),
    ("noise",),
    ("noise_sequence",),
)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call, and the configuration that says the others."""

    config: PretrainedConfig
    batch: int
    sequence: int
    seed: int

    def of(self, *names: str, default: int) -> int:
        """The first of these settings that the configuration or a nested one has."""
        for config in _configs(self.config):
            for name in names:
                value = config.__dict__.get(name)
                value = value[0] if isinstance(value, (list, tuple)) and value else value
                if type(value) is int:
                    return value
        return default

    def normal(self, *shape: int) -> torch.Tensor:
        """Normally distributed numbers."""
        return torch.randn(*shape, generator=torch.Generator().manual_seed(self.seed))

    def tokens(self, *shape: int, below: str = "vocab_size") -> torch.Tensor:
        """Token ids that are no special ones."""
        largest = min(self.of(below, default=100), 200)
        return torch.randint(min(3, largest - 1), largest, shape, generator=torch.Generator().manual_seed(self.seed))


def calls(model: PreTrainedModel) -> Iterator[list[dict[str, Any]]]:
    """Calls to try, each in two sizes."""
    parameters = inspect.signature(model.forward).parameters
    given = model.main_input_name
    mains = given if isinstance(given, (list, tuple)) else [given]
    wanted = [n for n, p in parameters.items() if n in BUILDERS and (n in mains or p.default is p.empty)]
    if model.config.is_encoder_decoder and "decoder_input_ids" in parameters:
        wanted.append("decoder_input_ids")
    tried = set()
    for further in FURTHER:
        names = tuple(dict.fromkeys([*wanted, *(name for name in further if name in parameters)]))
        if names and names not in tried and len(tried) < MOST:
            tried.add(names)
            yield from _layouts(model, names, "use_cache" in parameters)


def _layouts(model: PreTrainedModel, names: tuple[str, ...], cached: bool) -> Iterator[list[dict[str, Any]]]:
    both = [Sizes(model.config, batch, sequence, seed) for seed, (batch, sequence) in enumerate(SIZES)]
    built = [[BUILDERS[name](sizes) for name in names] for sizes in both]
    counts = [range(len(layouts)) for layouts in built[0]]
    for choice in itertools.islice(itertools.product(*counts), MOST):
        calls = [
            dict(zip(names, (layouts[i] for i, layouts in zip(choice, own, strict=True)), strict=True)) for own in built
        ]
        yield [{**call, "use_cache": False} if cached else call for call in calls]


def _configs(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    yield config
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if isinstance(inner, PretrainedConfig):
            yield from _configs(inner)


def _side(sizes: Sizes) -> int:
    return min(sizes.of("image_size", default=SIDE), 4 * SIDE)


def _images(sizes: Sizes) -> list[torch.Tensor]:
    channels, patch = sizes.of("num_channels", "in_channels", "in_chans", default=3), sizes.of("patch_size", default=4)
    side = _side(sizes)
    frames = sizes.of("num_frames", "frames_per_clip", "temporal_patch_size", default=1)
    width = channels * patch * patch * sizes.of("temporal_patch_size", default=1)
    return [
        sizes.normal(sizes.batch, channels, side, side),
        sizes.normal(sizes.batch, frames, channels, side, side),
        sizes.normal(sizes.batch * GRID * GRID, width),
        sizes.normal(sizes.batch, GRID * GRID, width),
        sizes.normal(sizes.batch * GRID * GRID, channels, patch, patch),
        sizes.normal(sizes.batch, channels, 2 * SIDE, 2 * SIDE),
        sizes.normal(1, channels, patch, sizes.batch * GRID * GRID * patch),
        sizes.normal(1, sizes.batch * GRID * GRID, width),
    ]


def _clips(sizes: Sizes) -> list[torch.Tensor]:
    channels = sizes.of("num_channels", "in_channels", "in_chans", default=3)
    side = sizes.of("image_size", "crop_size", default=SIDE)
    frames = sizes.of("num_frames", "frames_per_clip", default=2)
    return [sizes.normal(sizes.batch, frames, channels, side, side)]


def _waves(sizes: Sizes) -> list[torch.Tensor]:
    samples = SAMPLES * sizes.sequence
    bands = sizes.of("num_mel_bins", default=80)
    return [
        sizes.normal(sizes.batch, samples),
        sizes.normal(sizes.batch, 1, samples),
        sizes.normal(sizes.batch, sizes.of("max_length", default=FRAMES * sizes.sequence), bands),
    ]


def _spectrograms(sizes: Sizes) -> list[torch.Tensor]:
    names = (
        "num_mel_bins feature_size input_feat_per_channel input_feat_size feature_projection_input_dim n_mels".split()
    )
    bands, positions = sizes.of(*names, default=80), sizes.of("max_source_positions", default=0)
    frames = FRAMES * sizes.sequence
    found = [sizes.normal(sizes.batch, frames, bands), sizes.normal(sizes.batch, bands, frames)]
    side = sizes.of("spec_size", default=SIDE)
    whole = [sizes.normal(sizes.batch, bands, 2 * positions)] if 0 < positions <= 512 else []
    return [*whole, *found, sizes.normal(sizes.batch, 1, side, bands), sizes.normal(bands, frames)]


def _masks(of: Callable[[Sizes], list[torch.Tensor]], dim: int) -> Callable[[Sizes], list[torch.Tensor]]:
    def build(sizes: Sizes) -> list[torch.Tensor]:
        lengths = dict.fromkeys(layout.shape[dim] for layout in of(sizes) if layout.dim() > abs(dim))
        return [torch.ones(sizes.batch, length, dtype=kind) for length in lengths for kind in (torch.long, torch.bool)]

    return build


def _grids(sizes: Sizes) -> list[torch.Tensor]:
    return [torch.tensor([[1, GRID, GRID]] * sizes.batch), torch.tensor([[GRID, GRID]] * sizes.batch)]


def _boxes(sizes: Sizes) -> list[torch.Tensor]:
    corners = torch.arange(sizes.sequence)
    boxes = torch.stack([corners, corners + 1, corners + 7, corners + 11], -1).expand(sizes.batch, -1, -1)
    return [boxes.clone(), boxes / 100.0, torch.cat([boxes, boxes], -1) / 100.0]


def _series(sizes: Sizes) -> list[torch.Tensor]:
    length, channels = sizes.of("context_length", default=32), sizes.of("num_input_channels", default=1)
    length += max(sizes.config.__dict__.get("lags_sequence") or [0])
    return [sizes.normal(sizes.batch, length, channels), sizes.normal(sizes.batch, length)]


def _times(length: str, extra: str = "") -> Callable[[Sizes], list[torch.Tensor]]:
    def build(sizes: Sizes) -> list[torch.Tensor]:
        steps = sizes.of(length, default=32) + max((sizes.config.__dict__.get(extra) or [0]) if extra else [0])
        return [sizes.normal(sizes.batch, steps, sizes.of("num_time_features", default=1))]

    return build


def _vectors(*names: str) -> Callable[[Sizes], list[torch.Tensor]]:
    return lambda sizes: [sizes.normal(sizes.batch, sizes.sequence, sizes.of(*names, default=64))]


def _ids(below: str = "vocab_size") -> Callable[[Sizes], list[torch.Tensor]]:
    def build(sizes: Sizes) -> list[torch.Tensor]:
        channels = sizes.of("num_channels", "num_codebooks", default=0)
        flat = sizes.tokens(sizes.batch, sizes.sequence, below=below)
        return [flat, sizes.tokens(sizes.batch, sizes.sequence, channels, below=below)] if channels > 3 else [flat]

    return build


# What an argument of a name may look like.
BUILDERS: dict[str, Callable[[Sizes], list[torch.Tensor]]] = {
    "input_ids": _ids(),
    "qformer_input_ids": _ids(),
    "decoder_input_ids": lambda sizes: [sizes.tokens(sizes.batch, sizes.sequence + 2)],
    "task_inputs": lambda sizes: [sizes.tokens(sizes.batch, sizes.of("task_seq_len", default=77))],
    "pixel_values": _images,
    "prompt_pixel_values": _images,
    "prompt_masks": _images,
    "pixel_values_videos": _clips,
    "hidden_states": lambda sizes: _images(sizes)[2:],
    "grid_thw": _grids,
    "image_grid_thw": _grids,
    "target_sizes": lambda sizes: [torch.tensor([[GRID, GRID]] * sizes.batch)],
    "merge_sizes": lambda sizes: [torch.ones(sizes.batch, dtype=torch.long)],
    "spatial_shapes": lambda sizes: [torch.tensor([[GRID, GRID]] * sizes.batch)],
    "pixel_attention_mask": lambda sizes: [torch.ones(sizes.batch, GRID * GRID, dtype=torch.long)],
    "pixel_position_ids": lambda sizes: [
        torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).expand(sizes.batch, -1, -1).clone()
    ],
    "bbox": _boxes,
    "input_values": _waves,
    "audio_mel": _spectrograms,
    "audio_mel_mask": lambda sizes: [torch.zeros(sizes.batch, FRAMES * sizes.sequence, dtype=torch.bool)],
    "input_features": _spectrograms,
    "input_features_mask": _masks(_spectrograms, -1),
    "decoder_input_values": _vectors("num_mel_bins"),
    "latents": lambda sizes: [sizes.normal(sizes.batch, sizes.of("hidden_size", default=64), sizes.sequence)],
    "inputs": _vectors("d_model"),
    "query_embeds": _vectors("hidden_size"),
    "noise_embeds": _vectors("hidden_size"),
    "context_hidden_states": _vectors("hidden_size"),
    "encoder_hidden_states": _vectors("encoder_hidden_size", "hidden_size"),
    "visual_feats": _vectors("visual_feat_dim"),
    "visual_pos": _vectors("visual_pos_dim"),
    "states": _vectors("state_dim"),
    "actions": _vectors("act_dim"),
    "rewards": lambda sizes: [sizes.normal(sizes.batch, sizes.sequence, 1)],
    "returns_to_go": lambda sizes: [sizes.normal(sizes.batch, sizes.sequence, 1)],
    "timesteps": lambda sizes: [torch.arange(sizes.sequence).expand(sizes.batch, -1).clone()],
    "past_values": _series,
    "past_values_padding": lambda sizes: [torch.zeros(sizes.batch, sizes.of("context_length", default=32))],
    "past_observed_mask": lambda sizes: [torch.ones_like(layout) for layout in _series(sizes)],
    "past_time_features": _times("context_length", "lags_sequence"),
    "future_values": lambda sizes: [sizes.normal(sizes.batch, sizes.of("prediction_length", default=8))],
    "future_time_features": _times("prediction_length"),
    "noise": lambda sizes: [sizes.normal(sizes.batch, (_side(sizes) // sizes.of("patch_size", default=4)) ** 2)],
    "noise_sequence": lambda sizes: [
        sizes.normal(sizes.batch, FRAMES * sizes.sequence, sizes.of("model_in_channels", default=64))
    ],
    "freq": lambda sizes: [torch.zeros(sizes.batch, 1, dtype=torch.long)],
}
