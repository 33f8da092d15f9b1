"""More transformers of diffusers that make images, from J on, and the largest of B."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .diffusion_images import DIT, FLUX, latents, packed
from .made import Made, Numbers
from .noisy import (
    AXES,
    CHANNELS,
    GRID,
    HEADS,
    SIDE,
    TEXT,
    WORDS,
    alike,
    case,
    image,
    mask,
    patches,
    shares,
    text,
    times,
)

SD3: dict[str, Any] = {
    **DIT,
    "out_channels": CHANNELS,
    "joint_attention_dim": TEXT,
    "caption_projection_dim": 64,
    "pooled_projection_dim": 32,
    "pos_embed_max_size": 16,
}
QWEN: dict[str, Any] = {**FLUX, "patch_size": 2, "out_channels": CHANNELS}
del QWEN["num_single_layers"]


def _shapes(numbers: Numbers) -> list[tuple[int, int, int]]:
    return [(1, GRID, GRID)] * numbers.batch


def _shaped(numbers: Numbers) -> dict[str, Any]:
    return {
        "hidden_states": patches(numbers),
        "encoder_hidden_states": text(numbers),
        "encoder_hidden_states_mask": mask(numbers),
        "timestep": shares(numbers),
        "img_shapes": _shapes(numbers),
    }


def _qwen(numbers: Numbers) -> dict[str, Any]:
    slots = torch.zeros(numbers.batch, WORDS + numbers.more + 4, dtype=torch.bool)
    slots[:, -4:] = True
    return {**_shaped(numbers), "img_shapes": [[(1, GRID, GRID)]] * numbers.batch, "img_mask": slots}


def _omnigen(numbers: Numbers) -> dict[str, Any]:
    words, batch = WORDS + numbers.more, numbers.batch
    length = words + 1 + GRID * GRID
    return {
        "hidden_states": image(numbers),
        "timestep": times(numbers),
        "input_ids": numbers.ids(batch, words),
        "input_img_latents": [],
        "input_image_sizes": {},
        "attention_mask": torch.ones(batch, length, length),
        "position_ids": torch.arange(length).expand(batch, -1),
    }


CASES: dict[str, Callable[[], Made]] = {
    "BriaFibo2Transformer2DModel": case(
        "BriaFibo2Transformer2DModel",
        {
            "in_channels": CHANNELS,
            "dim": 64,
            "n_layers": 4,
            "n_refiner_layers": 1,
            "n_heads": 4,
            "cap_feat_dim": TEXT,
            "injection_layer_ids": (1, 3),
            "perceiver_num_layers": 1,
            "min_num_gist_tokens": 4,
            "max_num_gist_tokens": 8,
            "gist_step": 2,
            "gist_min_text_len": 4,
            "gist_max_text_len": 64,
            "axes_dims": AXES,
            "axes_lens": (64, 32, 32),
        },
        lambda numbers: {
            "hidden_states": image(numbers),
            "timestep": shares(numbers),
            "encoder_hidden_states": numbers(numbers.batch, 3, 6 + numbers.more, TEXT),
        },
    ),
    "JoyImageEditTransformer3DModel": case(
        "JoyImageEditTransformer3DModel",
        {
            "in_channels": CHANNELS,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "text_dim": TEXT,
            "num_layers": 2,
            "rope_dim_list": list(AXES),
        },
        lambda numbers: latents(numbers, hidden_states=image(numbers)[:, :, None]),
    ),
    "JoyImageEditPlusTransformer3DModel": case(
        "JoyImageEditPlusTransformer3DModel",
        {
            "in_channels": CHANNELS,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "text_dim": TEXT,
            "num_layers": 2,
            "rope_dim_list": list(AXES),
        },
        alike(
            lambda numbers: {
                "hidden_states": numbers(numbers.batch, GRID * GRID, CHANNELS, 1, 2, 2),
                "timestep": times(numbers),
                "encoder_hidden_states": text(numbers),
                "encoder_hidden_states_mask": mask(numbers),
                "shape_list": [[(1, GRID, GRID)]] * numbers.batch,
            }
        ),
    ),
    "Krea2Transformer2DModel": case(
        "Krea2Transformer2DModel",
        {
            **HEADS,
            "in_channels": 16,
            "num_layers": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "timestep_embed_dim": 32,
            "text_hidden_dim": TEXT,
            "num_text_layers": 2,
            "text_num_attention_heads": 4,
            "text_num_key_value_heads": 4,
            "text_intermediate_size": 48,
            "num_layerwise_text_blocks": 1,
            "num_refiner_text_blocks": 1,
            "axes_dims_rope": AXES,
        },
        lambda numbers: {
            "hidden_states": patches(numbers),
            "encoder_hidden_states": numbers(numbers.batch, WORDS + numbers.more, 2, TEXT),
            "timestep": shares(numbers),
            "position_ids": torch.zeros(WORDS + numbers.more + GRID * GRID, 3),
        },
    ),
    "LongCatImageTransformer2DModel": case(
        "LongCatImageTransformer2DModel", {**FLUX, "pooled_projection_dim": 32}, packed
    ),
    "Lumina2Transformer2DModel": case(
        "Lumina2Transformer2DModel",
        {
            "sample_size": SIDE,
            "in_channels": CHANNELS,
            "hidden_size": 64,
            "num_layers": 2,
            "num_refiner_layers": 1,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "multiple_of": 16,
            "axes_dim_rope": AXES,
            "axes_lens": (32, 32, 32),
            "cap_feat_dim": TEXT,
        },
        lambda numbers: latents(numbers, timestep=shares(numbers), encoder_attention_mask=mask(numbers)),
    ),
    "LuminaNextDiT2DModel": case(
        "LuminaNextDiT2DModel",
        {
            "sample_size": SIDE,
            "hidden_size": 64,
            "num_layers": 2,
            "num_attention_heads": 4,
            "num_kv_heads": 4,
            "multiple_of": 16,
            "cross_attention_dim": TEXT,
        },
        lambda numbers: latents(
            numbers, encoder_mask=mask(numbers), image_rotary_emb=numbers(16, 16, 8), cross_attention_kwargs={}
        ),
    ),
    "NucleusMoEImageTransformer2DModel": case(
        "NucleusMoEImageTransformer2DModel",
        {
            **QWEN,
            "num_key_value_heads": 2,
            "num_layers": 4,
            "num_experts": 4,
            "moe_intermediate_dim": 32,
            "capacity_factors": [4.0] * 4,
            "dense_moe_strategy": "leave_first_three_blocks_dense",
        },
        alike(_shaped),
    ),
    "OmniGenTransformer2DModel": case(
        "OmniGenTransformer2DModel",
        {
            "in_channels": CHANNELS,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 96,
            "num_layers": 2,
            "pad_token_id": 0,
            "vocab_size": 64,
            "max_position_embeddings": 128,
            "pos_embed_max_size": 16,
            "time_step_dim": 32,
            "rope_scaling": {"long_factor": [1.0] * 8, "short_factor": [1.0] * 8},
        },
        _omnigen,
    ),
    "OvisImageTransformer2DModel": case("OvisImageTransformer2DModel", {**FLUX, "out_channels": 16}, packed),
    "PRXTransformer2DModel": case(
        "PRXTransformer2DModel",
        {
            "in_channels": CHANNELS,
            "context_in_dim": TEXT,
            "hidden_size": 64,
            "num_heads": 4,
            "depth": 2,
            "axes_dim": [8, 8],
        },
        lambda numbers: latents(numbers, timestep=shares(numbers)),
    ),
    "PixArtTransformer2DModel": case(
        "PixArtTransformer2DModel",
        {**DIT, "out_channels": 8, "cross_attention_dim": 64, "caption_channels": TEXT},
        lambda numbers: latents(numbers, added_cond_kwargs={"resolution": None, "aspect_ratio": None}),
    ),
    "QwenImageTransformer2DModel": case("QwenImageTransformer2DModel", QWEN, alike(_shaped)),
    "QwenImage21Transformer2DModel": case(
        "QwenImage21Transformer2DModel",
        {
            **HEADS,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 2,
            "context_in_dim": TEXT,
            "axes_dims_rope": AXES,
        },
        alike(_qwen),
    ),
    "SD3Transformer2DModel": case(
        "SD3Transformer2DModel", SD3, lambda numbers: latents(numbers, pooled_projections=numbers(numbers.batch, 32))
    ),
    "SD3Transformer2DModel: dual": case(
        "SD3Transformer2DModel",
        {**SD3, "dual_attention_layers": (0,), "qk_norm": "rms_norm"},
        lambda numbers: latents(numbers, pooled_projections=numbers(numbers.batch, 32)),
    ),
    "SanaTransformer2DModel": case(
        "SanaTransformer2DModel",
        {
            **{**DIT, "patch_size": 1},
            "out_channels": CHANNELS,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": 64,
            "caption_channels": TEXT,
        },
        latents,
    ),
    "ZImageTransformer2DModel": case(
        "ZImageTransformer2DModel",
        {
            "in_channels": CHANNELS,
            "dim": 64,
            "n_layers": 2,
            "n_refiner_layers": 1,
            "n_heads": 4,
            "n_kv_heads": 4,
            "cap_feat_dim": TEXT,
            "axes_dims": list(AXES),
            "axes_lens": [256, 32, 32],
        },
        alike(
            lambda numbers: {
                "x": list(image(numbers)[:, :, None].unbind()),
                "t": shares(numbers),
                "cap_feats": list(text(numbers).unbind()),
            }
        ),
    ),
}
