"""Transformers of diffusers that make images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .made import Made, Numbers
from .noisy import (
    AXES,
    CHANNELS,
    GRID,
    HEADS,
    SIDE,
    TEXT,
    case,
    image,
    mask,
    patches,
    places,
    shares,
    text,
    times,
)

FLUX: dict[str, Any] = {
    **HEADS,
    "patch_size": 1,
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 2,
    "joint_attention_dim": TEXT,
    "axes_dims_rope": AXES,
}
DIT: dict[str, Any] = {**HEADS, "num_layers": 2, "in_channels": CHANNELS, "patch_size": 2, "sample_size": SIDE}


def packed(numbers: Numbers, **more: Any) -> dict[str, Any]:
    """A call with images as patches in a row."""
    return {
        "hidden_states": patches(numbers),
        "encoder_hidden_states": text(numbers),
        "timestep": shares(numbers),
        **places(numbers),
        **more,
    }


def latents(numbers: Numbers, **more: Any) -> dict[str, Any]:
    """A call with images."""
    return {"hidden_states": image(numbers), "encoder_hidden_states": text(numbers), "timestep": times(numbers), **more}


def _sized(numbers: Numbers, **more: Any) -> dict[str, Any]:
    sizes = torch.full((numbers.batch, 2), 64.0)
    return latents(numbers, target_size=sizes, crop_coords=torch.zeros_like(sizes), **more)


def _hunyuan(numbers: Numbers) -> dict[str, Any]:
    return {
        "hidden_states": image(numbers),
        "timestep": times(numbers),
        "encoder_hidden_states": numbers(numbers.batch, 5, TEXT),
        "text_embedding_mask": torch.ones(numbers.batch, 5, dtype=torch.bool),
        "encoder_hidden_states_t5": numbers(numbers.batch, 6, TEXT),
        "text_embedding_mask_t5": torch.ones(numbers.batch, 6, dtype=torch.bool),
        "image_meta_size": torch.full((numbers.batch, 6), 64.0),
        "style": torch.zeros(numbers.batch, dtype=torch.long),
        "image_rotary_emb": (numbers(GRID * GRID, 16), numbers(GRID * GRID, 16)),
    }


def _ideogram(numbers: Numbers) -> dict[str, Any]:
    length = GRID * GRID + 8
    kinds = torch.tensor([3] * 8 + [2] * (GRID * GRID)).expand(numbers.batch, -1)
    return {
        "hidden_states": numbers(numbers.batch, length, 16),
        "encoder_hidden_states": numbers(numbers.batch, length, TEXT),
        "timestep": shares(numbers),
        "position_ids": torch.arange(length)[None, :, None].expand(numbers.batch, -1, 3),
        "segment_ids": torch.ones(numbers.batch, length, dtype=torch.long),
        "indicator": kinds,
    }


CASES: dict[str, Callable[[], Made]] = {
    "AuraFlowTransformer2DModel": case(
        "AuraFlowTransformer2DModel",
        {
            **HEADS,
            "sample_size": SIDE,
            "num_mmdit_layers": 2,
            "num_single_dit_layers": 2,
            "joint_attention_dim": TEXT,
            "caption_projection_dim": 64,
            "pos_embed_max_size": 64,
        },
        latents,
    ),
    "BriaTransformer2DModel": case("BriaTransformer2DModel", FLUX, packed),
    "BriaFiboTransformer2DModel": case(
        "BriaFiboTransformer2DModel",
        {**FLUX, "text_encoder_dim": 16, "joint_attention_dim": TEXT},
        lambda numbers: packed(numbers, text_encoder_layers=[text(numbers, 16) for _ in range(4)]),
    ),
    "ChromaTransformer2DModel": case(
        "ChromaTransformer2DModel",
        {**FLUX, "approximator_num_channels": 8, "approximator_hidden_dim": 32, "approximator_layers": 1},
        packed,
    ),
    "CogView3PlusTransformer2DModel": case(
        "CogView3PlusTransformer2DModel",
        {
            **DIT,
            "out_channels": CHANNELS,
            "text_embed_dim": TEXT,
            "time_embed_dim": 32,
            "condition_dim": 8,
            "pos_embed_max_size": 8,
        },
        lambda numbers: _sized(numbers, original_size=torch.full((numbers.batch, 2), 64.0)),
    ),
    "CogView4Transformer2DModel": case(
        "CogView4Transformer2DModel",
        {**DIT, "out_channels": CHANNELS, "text_embed_dim": TEXT, "time_embed_dim": 32, "condition_dim": 8},
        lambda numbers: _sized(numbers, original_size=torch.full((numbers.batch, 2), 64.0)),
    ),
    "DiTTransformer2DModel": case(
        "DiTTransformer2DModel",
        {**DIT, "out_channels": 8, "num_embeds_ada_norm": 16},
        lambda numbers: {
            "hidden_states": image(numbers),
            "timestep": times(numbers),
            "class_labels": numbers.ids(numbers.batch, below=16),
        },
    ),
    "DreamLiteTransformer2DModel": case(
        "DreamLiteTransformer2DModel",
        {**HEADS, "in_channels": 32, "num_layers": 2, "norm_num_groups": 8, "cross_attention_dim": TEXT},
        lambda numbers: {"hidden_states": image(numbers, 32, 4), "encoder_hidden_states": text(numbers)},
    ),
    "ErnieImageTransformer2DModel": case(
        "ErnieImageTransformer2DModel",
        {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_layers": 2,
            "ffn_hidden_size": 128,
            "in_channels": 16,
            "out_channels": 16,
            "text_in_dim": TEXT,
            "rope_axes_dim": AXES,
        },
        lambda numbers: {
            "hidden_states": image(numbers, 16, GRID),
            "timestep": times(numbers),
            "text_bth": text(numbers),
            "text_lens": torch.full((numbers.batch,), 6 + numbers.more),
        },
    ),
    "FluxTransformer2DModel": case(
        "FluxTransformer2DModel",
        {**FLUX, "pooled_projection_dim": 32},
        lambda numbers: packed(numbers, pooled_projections=numbers(numbers.batch, 32)),
    ),
    "FluxTransformer2DModel: guided": case(
        "FluxTransformer2DModel",
        {**FLUX, "num_attention_heads": 5, "pooled_projection_dim": 32, "guidance_embeds": True},
        lambda numbers: packed(numbers, pooled_projections=numbers(numbers.batch, 32), guidance=times(numbers)),
    ),
    "Flux2Transformer2DModel": case(
        "Flux2Transformer2DModel",
        {**FLUX, "axes_dims_rope": (4, 4, 4, 4), "timestep_guidance_channels": 32},
        lambda numbers: packed(numbers, **places(numbers, 4), guidance=times(numbers)),
    ),
    "Flux3Transformer2DModel": case(
        "Flux3Transformer2DModel",
        {
            **{name: value for name, value in FLUX.items() if name != "patch_size"},
            "cond_in_channels": 16,
            "axes_dims_rope": (4, 4, 4, 4),
            "timestep_channels": 32,
        },
        lambda numbers: packed(numbers, **places(numbers, 4)),
    ),
    "GlmImageTransformer2DModel": case(
        "GlmImageTransformer2DModel",
        {
            **HEADS,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "num_layers": 2,
            "text_embed_dim": TEXT,
            "time_embed_dim": 32,
            "condition_dim": 8,
            "prior_vq_quantizer_codebook_size": 64,
        },
        lambda numbers: _sized(
            numbers,
            prior_token_id=numbers.ids(numbers.batch, GRID * GRID),
            prior_token_drop=torch.zeros(numbers.batch, GRID * GRID, dtype=torch.bool),
        ),
    ),
    "HiDreamImageTransformer2DModel": case(
        "HiDreamImageTransformer2DModel",
        {
            **HEADS,
            "patch_size": 2,
            "in_channels": CHANNELS,
            "num_layers": 2,
            "num_single_layers": 2,
            "caption_channels": [TEXT, 16],
            "text_emb_dim": 16,
            "axes_dims_rope": (8, 4, 4),
            "max_resolution": (SIDE, SIDE),
            "llama_layers": (0, 1, 0, 1),
            "force_inference_output": True,
        },
        lambda numbers: {
            "hidden_states": image(numbers),
            "timesteps": times(numbers),
            "encoder_hidden_states_t5": text(numbers),
            "encoder_hidden_states_llama3": numbers(2, numbers.batch, 6 + numbers.more, 16),
            "pooled_embeds": numbers(numbers.batch, 16),
        },
    ),
    "HunyuanDiT2DModel": case(
        "HunyuanDiT2DModel",
        {
            **{**DIT, "num_layers": 4},
            "hidden_size": 64,
            "cross_attention_dim": TEXT,
            "cross_attention_dim_t5": TEXT,
            "pooled_projection_dim": 16,
            "text_len": 5,
            "text_len_t5": 6,
        },
        _hunyuan,
    ),
    "HunyuanImageTransformer2DModel": case(
        "HunyuanImageTransformer2DModel",
        {
            **HEADS,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "num_layers": 2,
            "num_single_layers": 2,
            "num_refiner_layers": 1,
            "text_embed_dim": TEXT,
            "text_embed_2_dim": 16,
            "rope_axes_dim": (8, 8),
        },
        lambda numbers: {
            "hidden_states": image(numbers, side=GRID),
            "timestep": times(numbers),
            "encoder_hidden_states": text(numbers),
            "encoder_attention_mask": mask(numbers),
            "encoder_hidden_states_2": text(numbers, 16),
            "encoder_attention_mask_2": mask(numbers),
        },
    ),
    "Ideogram4Transformer2DModel": case(
        "Ideogram4Transformer2DModel",
        {
            **HEADS,
            "in_channels": 16,
            "num_layers": 2,
            "intermediate_size": 96,
            "adaln_dim": 32,
            "llm_features_dim": TEXT,
            "mrope_section": (4, 2, 2),
        },
        _ideogram,
    ),
}
