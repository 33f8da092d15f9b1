"""Transformers of diffusers that make clips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .made import Made, Numbers
from .noisy import AXES, CHANNELS, FRAMES, GRID, HEADS, SIDE, TEXT, WORDS, case, clip, mask, text, times

SAMPLE: dict[str, Any] = {"sample_width": SIDE, "sample_height": SIDE, "sample_frames": 5}
IN_OUT: dict[str, Any] = {"in_channels": CHANNELS, "out_channels": CHANNELS}
WAN: dict[str, Any] = {**HEADS, **IN_OUT, "text_dim": TEXT, "freq_dim": 32, "ffn_dim": 96, "num_layers": 2}
HUNYUAN: dict[str, Any] = {
    **HEADS,
    **IN_OUT,
    "num_layers": 2,
    "num_single_layers": 2,
    "num_refiner_layers": 1,
    "text_embed_dim": TEXT,
    "rope_axes_dim": AXES,
}


def called(numbers: Numbers, **more: Any) -> dict[str, Any]:
    """A call with clips."""
    return {"hidden_states": clip(numbers), "timestep": times(numbers), "encoder_hidden_states": text(numbers), **more}


def _by_frame(numbers: Numbers, **more: Any) -> dict[str, Any]:
    return called(numbers, hidden_states=clip(numbers).transpose(1, 2), encoder_hidden_states=_fixed(numbers), **more)


def _fixed(numbers: Numbers, width: int = TEXT) -> torch.Tensor:
    return numbers(numbers.batch, WORDS, width)


def masked(numbers: Numbers, **more: Any) -> dict[str, Any]:
    """The same that says which words are to be read."""
    return called(numbers, encoder_attention_mask=mask(numbers), **more)


def _pooled(numbers: Numbers, **more: Any) -> dict[str, Any]:
    return masked(numbers, pooled_projections=numbers(numbers.batch, 16), guidance=times(numbers), **more)


CASES: dict[str, Callable[[], Made]] = {
    "AllegroTransformer3DModel": case(
        "AllegroTransformer3DModel",
        {
            **{**HEADS, "attention_head_dim": 24},
            **{**SAMPLE, "sample_frames": FRAMES},
            "num_layers": 2,
            "cross_attention_dim": 96,
            "caption_channels": TEXT,
        },
        called,
    ),
    "AnyFlowTransformer3DModel": case(
        "AnyFlowTransformer3DModel",
        WAN,
        lambda numbers: called(
            numbers,
            hidden_states=clip(numbers).transpose(1, 2),
            timestep=numbers.ids(numbers.batch, FRAMES).float(),
            r_timestep=numbers.ids(numbers.batch, FRAMES).float(),
        ),
    ),
    "ChronoEditTransformer3DModel": case("ChronoEditTransformer3DModel", WAN, called),
    "CogVideoXTransformer3DModel": case(
        "CogVideoXTransformer3DModel",
        {
            **HEADS,
            **IN_OUT,
            **SAMPLE,
            "time_embed_dim": 32,
            "text_embed_dim": TEXT,
            "num_layers": 2,
            "max_text_seq_length": WORDS,
        },
        _by_frame,
    ),
    "ConsisIDTransformer3DModel": case(
        "ConsisIDTransformer3DModel",
        {
            **{**HEADS, **IN_OUT, **SAMPLE},
            "time_embed_dim": 32,
            "text_embed_dim": TEXT,
            "num_layers": 2,
            "max_text_seq_length": WORDS,
            "cross_attn_interval": 1,
            "is_train_face": True,
            "cross_attn_dim_head": 16,
            "cross_attn_num_heads": 4,
            "LFE_id_dim": 16,
            "LFE_vit_dim": 16,
            "LFE_depth": 5,
            "LFE_dim_head": 8,
            "LFE_num_heads": 4,
            "LFE_num_id_token": 1,
            "LFE_num_querie": 4,
            "LFE_output_dim": 42,
            "LFE_ff_mult": 1,
            "LFE_num_scale": 1,
        },
        lambda numbers: _by_frame(
            numbers, id_cond=numbers(numbers.batch, 16), id_vit_hidden=[numbers(numbers.batch, 3, 16)]
        ),
    ),
    "CosmosTransformer3DModel": case(
        "CosmosTransformer3DModel",
        {
            **{**HEADS, **IN_OUT},
            "num_layers": 2,
            "text_embed_dim": TEXT,
            "adaln_lora_dim": 16,
            "max_size": (4, 16, 16),
            "extra_pos_embed_type": None,
        },
        lambda numbers: called(numbers, padding_mask=torch.zeros(1, 1, 4 * SIDE, 4 * SIDE)),
    ),
    "EasyAnimateTransformer3DModel": case(
        "EasyAnimateTransformer3DModel",
        {
            **{**HEADS, **IN_OUT, "attention_head_dim": 16},
            "patch_size": 2,
            "sample_width": SIDE,
            "sample_height": SIDE,
            "num_layers": 2,
            "mmdit_layers": 1,
            "time_embed_dim": 32,
            "text_embed_dim": TEXT,
        },
        called,
    ),
    "HeliosTransformer3DModel": case(
        "HeliosTransformer3DModel",
        {**WAN, "rope_dim": AXES},
        lambda numbers: called(
            numbers,
            indices_hidden_states=torch.arange(4, 6).expand(numbers.batch, -1),
            indices_latents_history_short=torch.arange(4).expand(numbers.batch, -1)[:, -1:],
            indices_latents_history_mid=torch.arange(2).expand(numbers.batch, -1),
            indices_latents_history_long=torch.arange(4).expand(numbers.batch, -1),
            latents_history_short=clip(numbers, frames=1),
            latents_history_mid=clip(numbers, frames=2),
            latents_history_long=clip(numbers, frames=4),
        ),
    ),
    "HunyuanVideoTransformer3DModel": case(
        "HunyuanVideoTransformer3DModel", {**HUNYUAN, "pooled_projection_dim": 16}, _pooled
    ),
    "HunyuanVideo15Transformer3DModel": case(
        "HunyuanVideo15Transformer3DModel",
        {
            **{name: value for name, value in HUNYUAN.items() if name != "num_single_layers"},
            "text_embed_2_dim": 16,
            "image_embed_dim": 16,
            "target_size": 16,
        },
        lambda numbers: masked(
            numbers,
            hidden_states=clip(numbers, side=GRID),
            encoder_hidden_states_2=text(numbers, 16),
            encoder_attention_mask_2=mask(numbers),
            image_embeds=numbers(numbers.batch, 3, 16),
        ),
    ),
    "HunyuanVideoFramepackTransformer3DModel": case(
        "HunyuanVideoFramepackTransformer3DModel",
        {
            **HUNYUAN,
            "pooled_projection_dim": 16,
            "has_image_proj": True,
            "image_proj_dim": 16,
            "has_clean_x_embedder": True,
        },
        lambda numbers: _pooled(
            numbers,
            image_embeds=numbers(numbers.batch, 3, 16),
            indices_latents=torch.arange(FRAMES),
            latents_clean=clip(numbers),
            indices_latents_clean=torch.arange(FRAMES),
            latents_history_2x=clip(numbers),
            indices_latents_history_2x=torch.arange(FRAMES),
            latents_history_4x=clip(numbers, frames=4),
            indices_latents_history_4x=torch.arange(4),
        ),
    ),
}
