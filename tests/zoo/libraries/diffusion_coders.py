"""Autoencoders of diffusers, and vocoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .made import Made, Numbers
from .noisy import case

SIDE, FRAMES, SAMPLES = 32, 5, 256
CODER: dict[str, Any] = {"block_out_channels": (32, 64), "norm_num_groups": 8, "latent_channels": 4}
DOWN_UP: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
}


def _pictures(numbers: Numbers) -> dict[str, Any]:
    return {"sample": numbers(numbers.batch, 3, SIDE, SIDE)}


def _films(numbers: Numbers) -> dict[str, Any]:
    return {"sample": numbers(numbers.batch, 3, FRAMES, SIDE, SIDE)}


def _sounds(channels: int, samples: int = SAMPLES) -> Callable[[Numbers], dict[str, Any]]:
    return lambda numbers: {"sample": numbers(numbers.batch, channels, samples)}


def _wan(channels: int = 4) -> dict[str, Any]:
    return {
        "base_dim": 16,
        "z_dim": channels,
        "dim_mult": [1, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [True],
        "latents_mean": [0.0] * channels,
        "latents_std": [1.0] * channels,
    }


def _ltx(name: str) -> dict[str, Any]:
    return {
        "latent_channels": 8,
        "block_out_channels": (16, 32),
        "decoder_block_out_channels": (16, 32),
        "layers_per_block": (1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1),
        "spatio_temporal_scaling": (True, True),
        "decoder_spatio_temporal_scaling": (True, True),
        "decoder_inject_noise": (False, False, False),
        "down_block_types": (name, name),
        "patch_size": 1,
    }


CASES: dict[str, Callable[[], Made]] = {
    "AsymmetricAutoencoderKL": case(
        "AsymmetricAutoencoderKL",
        {
            **DOWN_UP,
            "down_block_out_channels": (32, 64),
            "up_block_out_channels": (32, 64),
            "norm_num_groups": 8,
        },
        _pictures,
    ),
    "AutoencoderDC": case(
        "AutoencoderDC",
        {
            "latent_channels": 4,
            "attention_head_dim": 8,
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (16, 32),
            "decoder_block_out_channels": (16, 32),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
        },
        _pictures,
    ),
    "AutoencoderKL": case("AutoencoderKL", {**CODER, **DOWN_UP}, _pictures),
    # AutoencoderKLAllegro only runs in tiles, of which a small clip has none.
    "AutoencoderKLCogVideoX": case(
        "AutoencoderKLCogVideoX", {**CODER, "block_out_channels": (16, 16, 32, 32), "layers_per_block": 1}, _films
    ),
    "AutoencoderKLCosmos": case(
        "AutoencoderKLCosmos",
        {
            "latent_channels": 4,
            "encoder_block_out_channels": (16, 16, 32, 32),
            "decode_block_out_channels": (16, 32, 32, 32),
            "attention_resolutions": (8,),
            "resolution": 64,
            "num_layers": 1,
            "patch_size": 4,
            "latents_mean": [0.0] * 64,
            "latents_std": [1.0] * 64,
        },
        lambda numbers: {"sample": numbers(numbers.batch, 3, 9, SIDE, SIDE)},
    ),
    "AutoencoderKLFlux2": case("AutoencoderKLFlux2", {**CODER, **DOWN_UP, "layers_per_block": 1}, _pictures),
    "AutoencoderKLHunyuanVideo": case(
        "AutoencoderKLHunyuanVideo",
        {**CODER, "block_out_channels": (16, 16, 32, 32), "layers_per_block": 1},
        _films,
    ),
    "AutoencoderKLHunyuanImage": case(
        "AutoencoderKLHunyuanImage",
        {
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 4,
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "spatial_compression_ratio": 4,
            "sample_size": SIDE,
        },
        _pictures,
    ),
    "AutoencoderKLKVAE": case(
        "AutoencoderKLKVAE",
        {"channels": 32, "num_enc_blocks": 1, "num_dec_blocks": 1, "z_channels": 4, "ch_mult": (1, 2)},
        _pictures,
    ),
    "AutoencoderKLLTXVideo": case("AutoencoderKLLTXVideo", _ltx("LTXVideoDownBlock3D"), _films),
    "AutoencoderKLMagvit": case(
        "AutoencoderKLMagvit",
        {
            **{**CODER, "block_out_channels": [16, 32], "layers_per_block": 1},
            "down_block_types": ["SpatialDownBlock3D", "SpatialTemporalDownBlock3D"],
            "up_block_types": ["SpatialUpBlock3D", "SpatialTemporalUpBlock3D"],
        },
        _films,
    ),
    "AutoencoderKLMochi": case(
        "AutoencoderKLMochi",
        {
            "latent_channels": 4,
            "encoder_block_out_channels": (32, 32, 32, 32),
            "decoder_block_out_channels": (32, 32, 32, 32),
            "layers_per_block": (1, 1, 1, 1, 1),
            "latents_mean": [0.0] * 4,
            "latents_std": [1.0] * 4,
        },
        lambda numbers: {"sample": numbers(numbers.batch, 3, 7, 16, 16)},
    ),
    "AutoencoderKLQwenImage": case(
        "AutoencoderKLQwenImage", _wan(), lambda numbers: {"sample": numbers(numbers.batch, 3, 1, SIDE, SIDE)}
    ),
    "AutoencoderKLTemporalDecoder": case(
        "AutoencoderKLTemporalDecoder",
        {
            "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
            "block_out_channels": (32, 64),
            "latent_channels": 4,
        },
        lambda numbers: {"sample": numbers(2 * numbers.batch, 3, SIDE, SIDE), "num_frames": 2},
    ),
    "AutoencoderKLWan": case("AutoencoderKLWan", _wan(), _films),
    "AutoencoderOobleck": case(
        "AutoencoderOobleck",
        {
            "encoder_hidden_size": 16,
            "downsampling_ratios": [2, 4],
            "channel_multiples": [1, 2],
            "decoder_channels": 16,
            "decoder_input_channels": 8,
        },
        _sounds(2),
    ),
    "AutoencoderTiny": case(
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (32, 32),
            "decoder_block_out_channels": (32, 32),
            "num_encoder_blocks": (1, 2),
            "num_decoder_blocks": (2, 1),
        },
        _pictures,
    ),
    "AutoencoderVidTok": case(
        "AutoencoderVidTok",
        {"ch": 32, "ch_mult": [1, 2, 2, 2], "num_res_blocks": 1},
        lambda numbers: {
            "sample": numbers(numbers.batch, 3, 5, SIDE, SIDE),
            "sample_posterior": False,
        },
    ),
    "LongCatAudioDiTVae": case(
        "LongCatAudioDiTVae",
        {
            "channels": 16,
            "c_mults": [1, 2],
            "strides": [2],
            "latent_dim": 8,
            "encoder_latent_dim": 16,
            "downsampling_ratio": 2,
        },
        _sounds(1),
    ),
    "MMAudioVAE": case(
        "MMAudioVAE",
        {
            "mel_bins": 16,
            "latent_channels": 8,
            "hidden_channels": 32,
            "channel_multipliers": (1, 2),
            "layers_per_block": 1,
            "n_fft": 64,
            "hop_length": 16,
        },
        lambda numbers: {"sample": numbers(numbers.batch, SAMPLES)},
    ),
    "MMAudioVocoder": case(
        "MMAudioVocoder",
        {"num_mels": 16, "upsample_initial_channel": 64, "upsample_rates": (2, 2), "upsample_kernel_sizes": (4, 4)},
        lambda numbers: {"mel": numbers(numbers.batch, 16, 16)},
    ),
    "MiniMaxMusic3Vocoder": case(
        "MiniMaxMusic3Vocoder",
        {"latent_channels": 8, "decoder_input_dim": 32, "decoder_hidden_dim": 64, "upsampling_ratios": (2, 2)},
        lambda numbers: {"latents": numbers(numbers.batch, 8, 16)},
    ),
    "VQModel": case(
        "VQModel",
        {**{**CODER, **DOWN_UP}, "num_vq_embeddings": 64},
        _pictures,
    ),
}
