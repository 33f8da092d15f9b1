"""Transformers of diffusers that make clips, from K on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .diffusion_videos import HUNYUAN, IN_OUT, WAN, called, masked
from .made import Made, Numbers
from .noisy import AXES, CHANNELS, FRAMES, GRID, HEADS, SIDE, TEXT, WORDS, case, clip, mask, text, times

LTX_TOKENS = FRAMES * GRID * GRID
LTX: dict[str, Any] = {**HEADS, **IN_OUT, "num_layers": 2, "cross_attention_dim": 64, "caption_channels": TEXT}
KANDINSKY: dict[str, Any] = {
    "in_visual_dim": CHANNELS,
    "out_visual_dim": CHANNELS,
    "in_text_dim": 16,
    "in_text_dim2": 16,
    "time_dim": 32,
    "model_dim": 64,
    "ff_dim": 96,
    "num_text_blocks": 1,
    "num_visual_blocks": 2,
    "axes_dims": AXES,
    "visual_cond": False,
}
SANA: dict[str, Any] = {
    **HEADS,
    **IN_OUT,
    "num_layers": 2,
    "num_cross_attention_heads": 4,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 64,
    "caption_channels": TEXT,
}


def _kandinsky(numbers: Numbers) -> dict[str, Any]:
    return {
        "hidden_states": numbers(numbers.batch, FRAMES, SIDE, SIDE, CHANNELS),
        "encoder_hidden_states": text(numbers, 16),
        "timestep": times(numbers),
        "pooled_projections": numbers(numbers.batch, 16),
        "visual_rope_pos": [torch.arange(FRAMES), torch.arange(GRID), torch.arange(GRID)],
        "text_rope_pos": torch.arange(WORDS + numbers.more),
    }


def _ltx(numbers: Numbers) -> dict[str, Any]:
    return {
        "hidden_states": numbers(numbers.batch, LTX_TOKENS, CHANNELS),
        "encoder_hidden_states": text(numbers),
        "timestep": times(numbers),
        "encoder_attention_mask": mask(numbers),
        "num_frames": FRAMES,
        "height": GRID,
        "width": GRID,
    }


def _ltx2(numbers: Numbers) -> dict[str, Any]:
    return {
        **_ltx(numbers),
        "audio_hidden_states": numbers(numbers.batch, 8, CHANNELS),
        "audio_encoder_hidden_states": text(numbers),
        "audio_encoder_attention_mask": mask(numbers),
        "timestep": times(numbers),
        "audio_num_frames": 8,
    }


CASES: dict[str, Callable[[], Made]] = {
    "Kandinsky5Transformer3DModel": case("Kandinsky5Transformer3DModel", KANDINSKY, _kandinsky),
    "Kandinsky6Transformer3DModel": case(
        "Kandinsky6Transformer3DModel",
        {**KANDINSKY, "in_audio_dim": 8, "out_audio_dim": 8},
        lambda numbers: {
            **{name: value for name, value in _kandinsky(numbers).items() if name != "text_rope_pos"},
            "audio_hidden_states": numbers(numbers.batch, 8, 8),
        },
    ),
    "LatteTransformer3DModel": case(
        "LatteTransformer3DModel",
        {
            **{**HEADS, **IN_OUT},
            "num_layers": 2,
            "cross_attention_dim": 64,
            "attention_bias": True,
            "sample_size": SIDE,
            "patch_size": 2,
            "activation_fn": "gelu-approximate",
            "num_embeds_ada_norm": 1000,
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
            "caption_channels": TEXT,
            "video_length": FRAMES,
        },
        called,
    ),
    "LTXVideoTransformer3DModel": case("LTXVideoTransformer3DModel", LTX, _ltx),
    "LTX2VideoTransformer3DModel": case(
        "LTX2VideoTransformer3DModel",
        {
            **LTX,
            "audio_in_channels": CHANNELS,
            "audio_out_channels": CHANNELS,
            "audio_num_attention_heads": 4,
            "audio_attention_head_dim": 8,
            "audio_cross_attention_dim": 32,
        },
        _ltx2,
    ),
    "MochiTransformer3DModel": case(
        "MochiTransformer3DModel",
        {
            **{**HEADS, "in_channels": CHANNELS},
            "num_layers": 2,
            "pooled_projection_dim": 32,
            "text_embed_dim": TEXT,
            "time_embed_dim": 32,
            "max_sequence_length": 16,
        },
        masked,
    ),
    "MotifVideoTransformer3DModel": case(
        "MotifVideoTransformer3DModel",
        {name: value for name, value in HUNYUAN.items() if name != "num_refiner_layers"},
        masked,
    ),
    "SanaVideoTransformer3DModel": case("SanaVideoTransformer3DModel", {**SANA, "sample_size": SIDE}, called),
    "SkyReelsV2Transformer3DModel": case("SkyReelsV2Transformer3DModel", WAN, called),
    "WanTransformer3DModel": case("WanTransformer3DModel", WAN, called),
    "WanTransformer3DModel: image": case(
        "WanTransformer3DModel",
        {**WAN, "image_dim": 16, "added_kv_proj_dim": 64},
        lambda numbers: called(numbers, encoder_hidden_states_image=numbers(numbers.batch, 3, 16)),
    ),
    "WanAnimateTransformer3DModel": case(
        "WanAnimateTransformer3DModel",
        {
            **{**WAN, "in_channels": 2 * CHANNELS + 4, "latent_channels": CHANNELS},
            "image_dim": 16,
            "added_kv_proj_dim": 64,
            "motion_encoder_channel_sizes": {"4": 16, "8": 16, "16": 16},
            "motion_encoder_size": 16,
            "motion_style_dim": 8,
            "motion_dim": 4,
            "motion_encoder_dim": 16,
            "face_encoder_hidden_dim": 16,
            "face_encoder_num_heads": 4,
            "inject_face_latents_blocks": 2,
        },
        lambda numbers: called(
            numbers,
            hidden_states=clip(numbers, 2 * CHANNELS + 4, 3),
            encoder_hidden_states_image=numbers(numbers.batch, 3, 16),
            pose_hidden_states=clip(numbers, CHANNELS, 2),
            face_pixel_values=numbers(numbers.batch, 3, 5, 16, 16),
        ),
    ),
    "WanVACETransformer3DModel": case(
        "WanVACETransformer3DModel",
        {**WAN, "vace_layers": [0], "vace_in_channels": 8},
        lambda numbers: called(
            numbers, control_hidden_states=clip(numbers, 8), control_hidden_states_scale=torch.ones(1)
        ),
    ),
}
