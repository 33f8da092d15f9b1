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


def _called(numbers: Numbers, **more: Any) -> dict[str, Any]:
    return {"hidden_states": clip(numbers), "timestep": times(numbers), "encoder_hidden_states": text(numbers), **more}


def _by_frame(numbers: Numbers, **more: Any) -> dict[str, Any]:
    return _called(numbers, hidden_states=clip(numbers).transpose(1, 2), encoder_hidden_states=_fixed(numbers), **more)


def _fixed(numbers: Numbers, width: int = TEXT) -> torch.Tensor:
    return numbers(numbers.batch, WORDS, width)


def _masked(numbers: Numbers, **more: Any) -> dict[str, Any]:
    return _called(numbers, encoder_attention_mask=mask(numbers), **more)


def _pooled(numbers: Numbers, **more: Any) -> dict[str, Any]:
    return _masked(numbers, pooled_projections=numbers(numbers.batch, 16), guidance=times(numbers), **more)


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
    "AllegroTransformer3DModel": case(
        "AllegroTransformer3DModel",
        {
            **{**HEADS, "attention_head_dim": 24},
            **{**SAMPLE, "sample_frames": FRAMES},
            "num_layers": 2,
            "cross_attention_dim": 96,
            "caption_channels": TEXT,
        },
        _called,
    ),
    "AnyFlowTransformer3DModel": case(
        "AnyFlowTransformer3DModel",
        WAN,
        lambda numbers: _called(
            numbers,
            hidden_states=clip(numbers).transpose(1, 2),
            timestep=numbers.ids(numbers.batch, FRAMES).float(),
            r_timestep=numbers.ids(numbers.batch, FRAMES).float(),
        ),
    ),
    "ChronoEditTransformer3DModel": case("ChronoEditTransformer3DModel", WAN, _called),
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
        lambda numbers: _called(numbers, padding_mask=torch.zeros(1, 1, 4 * SIDE, 4 * SIDE)),
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
        _called,
    ),
    "HeliosTransformer3DModel": case(
        "HeliosTransformer3DModel",
        {**WAN, "rope_dim": AXES},
        lambda numbers: _called(
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
        lambda numbers: _masked(
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
        _called,
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
        _masked,
    ),
    "MotifVideoTransformer3DModel": case(
        "MotifVideoTransformer3DModel",
        {name: value for name, value in HUNYUAN.items() if name != "num_refiner_layers"},
        _masked,
    ),
    "SanaVideoTransformer3DModel": case("SanaVideoTransformer3DModel", {**SANA, "sample_size": SIDE}, _called),
    "SkyReelsV2Transformer3DModel": case("SkyReelsV2Transformer3DModel", WAN, _called),
    "WanTransformer3DModel": case("WanTransformer3DModel", WAN, _called),
    "WanTransformer3DModel: image": case(
        "WanTransformer3DModel",
        {**WAN, "image_dim": 16, "added_kv_proj_dim": 64},
        lambda numbers: _called(numbers, encoder_hidden_states_image=numbers(numbers.batch, 3, 16)),
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
        lambda numbers: _called(
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
        lambda numbers: _called(
            numbers, control_hidden_states=clip(numbers, 8), control_hidden_states_scale=torch.ones(1)
        ),
    ),
}
