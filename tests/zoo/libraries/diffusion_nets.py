"""UNets of diffusers, and transformers that stand between convolutions or before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .made import Made, Numbers
from .noisy import CHANNELS, FRAMES, HEADS, TEXT, case, clip, image, mask, text, times

WIDTHS: dict[str, Any] = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
CROSSED = {**WIDTHS, "cross_attention_dim": TEXT, "attention_head_dim": 4}


def _called(numbers: Numbers, **more: Any) -> dict[str, Any]:
    return {"sample": image(numbers), "timestep": times(numbers), "encoder_hidden_states": text(numbers), **more}


def _clips(numbers: Numbers, **more: Any) -> dict[str, Any]:
    return _called(numbers, sample=clip(numbers), **more)


CASES: dict[str, Callable[[], Made]] = {
    "PriorTransformer": case(
        "PriorTransformer",
        {**HEADS, "num_layers": 2, "embedding_dim": 32, "num_embeddings": 7, "additional_embeddings": 4},
        lambda numbers: {
            "hidden_states": numbers(numbers.batch, 32),
            "timestep": times(numbers),
            "proj_embedding": numbers(numbers.batch, 32),
            "encoder_hidden_states": numbers(numbers.batch, 7, 32),
        },
    ),
    "Transformer2DModel": case(
        "Transformer2DModel",
        {**HEADS, "in_channels": 32, "num_layers": 2, "norm_num_groups": 8, "cross_attention_dim": TEXT},
        lambda numbers: {"hidden_states": image(numbers, 32, 4), "encoder_hidden_states": text(numbers)},
    ),
    "TransformerTemporalModel": case(
        "TransformerTemporalModel",
        {**HEADS, "in_channels": 32, "num_layers": 2, "norm_num_groups": 8},
        lambda numbers: {"hidden_states": numbers(2 * numbers.batch, 32, 4, 4), "num_frames": 2},
    ),
    "UNet1DModel": case(
        "UNet1DModel",
        {"block_out_channels": (32, 32, 64), "sample_size": 64, "extra_in_channels": 64},
        lambda numbers: {"sample": numbers(numbers.batch, 2, 64), "timestep": times(numbers)},
    ),
    "UNet2DModel": case(
        "UNet2DModel",
        {
            **WIDTHS,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda numbers: {"sample": image(numbers), "timestep": times(numbers)},
    ),
    "UNet2DConditionModel": case(
        "UNet2DConditionModel",
        {
            **CROSSED,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
        _called,
    ),
    "UNet2DConditionModel: xl": case(
        "UNet2DConditionModel",
        {
            **CROSSED,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "transformer_layers_per_block": (1, 2),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 64,
        },
        lambda numbers: _called(
            numbers,
            added_cond_kwargs={"text_embeds": numbers(numbers.batch, 16), "time_ids": numbers(numbers.batch, 6)},
        ),
    ),
    "UNet3DConditionModel": case(
        "UNet3DConditionModel",
        {
            **CROSSED,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        _clips,
    ),
    "I2VGenXLUNet": case(
        "I2VGenXLUNet",
        {
            **CROSSED,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        lambda numbers: _clips(
            numbers,
            fps=torch.full((numbers.batch,), 8),
            image_latents=clip(numbers),
            image_embeddings=numbers(numbers.batch, TEXT),
        ),
    ),
    "Kandinsky3UNet": case(
        "Kandinsky3UNet",
        {
            "time_embedding_dim": 32,
            "groups": 4,
            "attention_head_dim": 8,
            "layers_per_block": 3,
            "block_out_channels": (32, 64),
            "cross_attention_dim": 8,
            "encoder_hid_dim": TEXT,
        },
        lambda numbers: _called(numbers, encoder_attention_mask=mask(numbers)),
    ),
    "UNetMotionModel": case(
        "UNetMotionModel",
        {
            **WIDTHS,
            "cross_attention_dim": TEXT,
            "num_attention_heads": 4,
            "motion_num_attention_heads": 4,
            "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
        },
        lambda numbers: _clips(numbers, encoder_hidden_states=numbers(FRAMES * numbers.batch, 6, TEXT)),
    ),
    "UNetSpatioTemporalConditionModel": case(
        "UNetSpatioTemporalConditionModel",
        {
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "cross_attention_dim": TEXT,
            "num_attention_heads": (4, 8),
            "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
            "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 24,
        },
        lambda numbers: {
            "sample": numbers(numbers.batch, 2, 8, 8, 8),
            "timestep": times(numbers),
            "encoder_hidden_states": numbers(numbers.batch, 1, TEXT),
            "added_time_ids": numbers(numbers.batch, 3),
        },
    ),
    "StableCascadeUNet": case(
        "StableCascadeUNet",
        {
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "conditioning_dim": 32,
            "block_out_channels": (32, 64),
            "num_attention_heads": (4, 4),
            "down_num_layers_per_block": (1, 2),
            "up_num_layers_per_block": (2, 1),
            "clip_text_pooled_in_channels": 16,
        },
        lambda numbers: {
            "sample": image(numbers),
            "timestep_ratio": times(numbers) / 100,
            "clip_text_pooled": numbers(numbers.batch, 1, 16),
        },
    ),
    "UVit2DModel": case(
        "UVit2DModel",
        {
            "hidden_size": 64,
            "cond_embed_dim": 32,
            "micro_cond_encode_dim": 8,
            "micro_cond_embed_dim": 40,
            "encoder_hidden_size": TEXT,
            "vocab_size": 64,
            "codebook_size": 64,
            "in_channels": 32,
            "block_out_channels": 32,
            "num_res_blocks": 1,
            "block_num_heads": 4,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "sample_size": 4,
        },
        lambda numbers: {
            "input_ids": numbers.ids(numbers.batch, 4, 4),
            "encoder_hidden_states": text(numbers),
            "pooled_text_emb": numbers(numbers.batch, 32),
            "micro_conds": numbers(numbers.batch, 5),
        },
    ),
}
